"""Putting true values where a kernel on large tensors left zeros."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phantora.errors import PhantoraError


@cache
def _runtime() -> ctypes.CDLL:
    """The rank runtime, which is loaded with global scope in every rank."""
    library = ctypes.CDLL(None)
    library.ph_give.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    library.ph_give.restype = None
    library.ph_touch.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.ph_touch.restype = None
    return library


def write(tensor: Any, values: NDArray[Any]) -> None:
    """Gives a tensor on the GPU these values (cast to its type), as if the kernel that made it had.

    Nothing is launched and no time passes: simulated device memory is memory of this process.
    Operators on the tensor are computed from now on, whatever its size (docs/values.md). Behind a kernel that is
    captured, each launch of the graph gives the values again.
    A DTensor stands for its local part. The sizes must agree, and the tensor must be contiguous.
    """
    local, name = _local(tensor)
    try:
        data = np.ascontiguousarray(values, dtype=name)
    except TypeError:
        raise PhantoraError(f"values of type {name} cannot be given to a tensor") from None
    if data.size != local.numel():
        raise PhantoraError(f"{data.size} values cannot be given to a tensor of shape {tuple(local.shape)}")
    _runtime().ph_give(local.data_ptr(), data.ctypes.data, data.nbytes)


def read(tensor: Any) -> NDArray[Any]:
    """The values of a contiguous tensor on the GPU, flat; waits for those that are still to come."""
    local, name = _local(tensor)
    dtype = np.dtype(name)
    _runtime().ph_touch(local.data_ptr(), local.numel() * dtype.itemsize)
    return np.frombuffer(ctypes.string_at(local.data_ptr(), local.numel() * dtype.itemsize), dtype)


def _local(tensor: Any) -> tuple[Any, str]:
    """The tensor in this rank and NumPy's name of its type."""
    local = getattr(tensor, "_local_tensor", tensor)
    if not local.is_contiguous():
        raise PhantoraError(f"values of a tensor with gaps (shape {tuple(local.shape)}) cannot be reached")
    return local, str(local.dtype).removeprefix("torch.")

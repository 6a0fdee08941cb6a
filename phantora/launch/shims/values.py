"""Putting true values where a kernel on large tensors left zeros."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phantora.errors import PhantoraError


def write(tensor: Any, values: NDArray[Any]) -> None:
    """Gives a tensor on the GPU these values (cast to its type), as if the kernel that made it had.

    Nothing is launched and no time passes: simulated device memory is memory of this process.
    A DTensor stands for its local part. The sizes must agree, and the tensor must be contiguous.
    """
    local = getattr(tensor, "_local_tensor", tensor)
    name = str(local.dtype).removeprefix("torch.")
    try:
        data = np.ascontiguousarray(values, dtype=name)
    except TypeError:
        raise PhantoraError(f"values of type {name} cannot be given to a tensor") from None
    if data.size != local.numel() or not local.is_contiguous():
        raise PhantoraError(f"{data.size} values cannot be given to a tensor of shape {tuple(local.shape)}")
    ctypes.memmove(local.data_ptr(), data.ctypes.data, data.nbytes)

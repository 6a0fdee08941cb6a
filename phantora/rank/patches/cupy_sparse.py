"""CuPy's sparse matrices are refused by name: kernels of CuPy make their indices, and these compute nothing."""

from __future__ import annotations

import ctypes
from types import ModuleType
from typing import Any

from phantora.rank.importhook import on_import
from phantora.rank.patch import Patch, Rank, When

_MODULE = "cupyx.scipy.sparse._base"
_REASON = b"its indices would come from CuPy's own kernels, which compute nothing: use torch.sparse_csr_tensor"
_PASSES = b"make the matrix all the same, with indices that are not true"
_PASSED = b"the matrix is made, and its indices are not true"


def install(rank: Rank) -> None:
    """Refuses each sparse matrix of CuPy when one is made."""
    cudart = ctypes.CDLL(str(rank.library("libcudart")))

    def make(kind: type, *_: Any, **__: Any) -> object:
        cudart.cudaFree(None)  # as the matrix would, it makes the process a rank if it is none
        rank.runtime.ph_unsupported_result(_REASON, f"cupyx.scipy.sparse.{kind.__name__}".encode(), _PASSES, _PASSED)
        return object.__new__(kind)

    def meet(module: ModuleType) -> None:
        base = module._spbase if hasattr(module, "_spbase") else module.spmatrix  # of CuPy 14; of 13
        base.__new__ = make

    on_import((_MODULE,), meet)


PATCH = Patch("cupy sparse", When.BEFORE_TORCH, install)

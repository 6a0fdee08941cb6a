"""Symmetric memory is refused where a program asks for it: its kernels read and signal memory of other GPUs."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, NoReturn

from phantora.errors import PhantoraError
from phantora.launch.importhook import after_import

_MODULE = "torch.distributed._symmetric_memory"


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise PhantoraError(
        "symmetric memory (torch.distributed._symmetric_memory) is not simulated, nor what rests on it: asynchronous "
        "tensor parallelism (torch._inductor.config._micro_pipeline_tp), fused all-gather-matmul, one-shot and "
        "multimem all-reduce; leave it out, for NCCL's collectives"
    )


def _wrap(module: ModuleType) -> None:
    module._SymmetricMemory.empty_strided_p2p = staticmethod(_refuse)  # all ways to such memory end here


def install() -> None:
    """Replaces the allocation as soon as the module is there."""
    if _MODULE in sys.modules:
        _wrap(sys.modules[_MODULE])
    else:
        after_import(_MODULE.__eq__, _wrap)

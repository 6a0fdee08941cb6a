"""Annotations around what activation checkpointing computes again in the backward pass: its flops are no model's.

An annotation lies in the log, for the MFU (``phantora/trace/analysis/mfu.py``), and costs no virtual time.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from phantora.rank.importhook import on_import
from phantora.rank.patch import Patch, Rank, When
from phantora.wire.names import RECOMPUTED

_FORWARD = {
    "torch.utils.checkpoint": {"CheckpointFunction": "forward"},
    "megatron.core.tensor_parallel.random": {"CheckpointFunction": "forward", "CheckpointWithoutOutput": "checkpoint"},
    "deepspeed.runtime.activation_checkpointing.checkpointing": {"CheckpointFunction": "forward"},
    "transformer_engine.pytorch.distributed": {"_CheckpointFunction": "forward"},
}
"""Classes by module, with the method that keeps a function as `run_function` of its first argument, to call it again in
the backward pass."""
_FRAME = "_CheckpointFrame"
"""Name of the class that keeps a function as `recompute_fn`, of torch's and Transformer Engine's other checkpoints."""


def install(rank: Rank) -> None:
    """Marks what these modules compute again, as soon as they are imported."""
    library = ctypes.CDLL(str(rank.tracer))
    begin, end = library.phantora_span_begin, library.phantora_span_end
    begin.argtypes, begin.restype = [], ctypes.c_int64
    end.argtypes, end.restype = [ctypes.c_char_p, ctypes.c_int64], None

    def marked(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def again(*args: Any, **kwargs: Any) -> Any:
            start = begin()
            try:
                return function(*args, **kwargs)
            finally:  # a checkpoint that has all that it needs ends its function by an exception
                end(RECOMPUTED.encode(), start)

        return again

    on_import(_FORWARD, lambda module: mark(module, marked))


def mark(module: ModuleType, marked: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Makes the checkpoints of `module` keep ``marked(function)`` in place of a function."""
    for name, method in _FORWARD[module.__name__].items():
        if function := getattr(found := getattr(module, name, None), method, None):
            kept = _keeping(function, "run_function", marked)
            setattr(found, method, staticmethod(kept) if method == "forward" else kept)
    if frame := getattr(module, _FRAME, None):
        frame.__init__ = _keeping(frame.__init__, "recompute_fn", marked)


def _keeping(method: Any, name: str, marked: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
    @functools.wraps(method)
    def keep(first: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(first, *args, **kwargs)
        if function := getattr(first, name, None):
            setattr(first, name, marked(function))
        return result

    return keep


PATCH = Patch("recomputation", When.AFTER_TORCH, install)

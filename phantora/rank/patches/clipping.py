"""Gradients that a framework multiplies only where their norm exceeds the limit.

The norm of large gradients is unknown and reads zero, which asks for no clipping. At the start of a training it exceeds
the usual limit, so the multiplication is assumed (``--assume clip=always``, docs/assumptions.md). Frameworks that use
torch's ``clip_grad_norm_`` always multiply.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from phantora.rank.assume import setting
from phantora.rank.importhook import on_import
from phantora.rank.messages import tell
from phantora.rank.patch import Patch, Rank, When
from phantora.rank.shims.values import read, write

CLIPS = {
    "megatron.core.optimizer.optimizer": ("clip_grad_by_total_norm_fp32", "total_norm"),
    "deepspeed.runtime.bf16_optimizer": ("clip_tensors_by_global_norm", "global_norm"),
}
"""Module that clips -> the function that it calls, and its parameter for the norm. The limit is ``max_norm``."""
REPORTED = b"gradients of unknown norm are clipped"


def install(rank: Rank) -> None:
    """Makes these functions clip, as soon as their modules are imported."""
    report = ctypes.PyDLL(str(rank.tracer)).phantora_assumed
    report.argtypes, report.restype = [ctypes.c_char_p, ctypes.c_size_t], None

    def meet(module: ModuleType) -> None:
        clip_always(module, lambda: report(REPORTED, len(REPORTED)))

    on_import(CLIPS, meet)


def clip_always(module: ModuleType, report: Callable[[], None]) -> None:
    """Makes the function of `module` find a norm beyond its limit where the norm reads zero, and calls `report`
    then."""
    function, parameter = CLIPS[module.__name__]
    clip = getattr(module, function, None)
    if clip is None:
        tell(f"{module.__name__} has no {function}: clipping of gradients follows from a norm that reads zero")
        return

    order = inspect.signature(clip)

    @functools.wraps(clip)
    def clip_unknown(*args: Any, **kwargs: Any) -> Any:
        given = order.bind(*args, **kwargs)
        norm = given.arguments.get(parameter)
        limit = 2 * given.arguments.get("max_norm", order.parameters["max_norm"].default)
        if norm is None or setting("clip") == "never" or _value(norm) != 0:
            return clip(*args, **kwargs)
        report()
        if not getattr(norm, "is_cuda", False):
            given.arguments[parameter] = limit
            clip(*given.args, **given.kwargs)
            return norm
        write(norm, np.array([limit]))  # a tensor is compared on the GPU, so its own operators stay
        result = clip(*args, **kwargs)
        write(norm, np.array([0.0]))
        return result

    setattr(module, function, clip_unknown)


def _value(norm: Any) -> float:
    """A number, or what a tensor of one number on the GPU holds: read without a wait of the host."""
    return float(read(norm)[0]) if getattr(norm, "is_cuda", False) else float(norm)


PATCH = Patch("clipping", When.AFTER_TORCH, install)

"""torch.profiler in virtual time.

GPU rows come from the stub of CUPTI (``stub/cuda/cupti/activity.c``), with the simulator's times. CPU rows are dated by
counters of the processor, which the rank runtime turns into virtual time (``stub/rank/torch_hooks/profile.c``).
What is left is the profiler's own window, outside which it drops rows: it asks the system's clock for it when a
profile begins and ends.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from phantora.rank.importhook import on_import
from phantora.rank.patch import Patch, Rank, When

MODULE = "torch.autograd.profiler"
CALLS = ("_prepare_profiler", "_enable_profiler", "_disable_profiler")


def install(rank: Rank) -> None:
    """Gives the profiler's calls the virtual clock, as soon as its module is imported."""
    runtime = rank.runtime
    runtime.ph_profiler_clock.argtypes = [ctypes.c_bool]
    runtime.ph_profiler_clock.restype = None
    on_import((MODULE,), lambda module: _wrap(module, runtime.ph_profiler_clock))


def _wrap(module: ModuleType, virtual: Callable[[bool], None]) -> None:
    for name in CALLS:
        call = getattr(module, name, None)
        if call is not None:
            setattr(module, name, _in_virtual_time(call, virtual))


def _in_virtual_time(call: Callable[..., Any], virtual: Callable[[bool], None]) -> Callable[..., Any]:
    @functools.wraps(call)
    def called(*args: Any, **options: Any) -> Any:
        virtual(True)
        try:
            return call(*args, **options)
        finally:
            virtual(False)

    return called


PATCH = Patch("profiler", When.BEFORE_TORCH, install)

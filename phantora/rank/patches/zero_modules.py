"""Modules of ZeRO's third stage in the places of its collectives: ``ZeRO fetch, module layers.0.mlp``.

DeepSpeed gathers the parameters of a module before it runs, and reduces gradients in buckets. Hang reports and
mismatches name the module (docs/waiting.md). The names are those that DeepSpeed keeps for its own messages.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from phantora.rank.importhook import on_import
from phantora.rank.patch import Patch, Rank, When

_ZERO = "deepspeed.runtime.zero."
_FETCHES = _ZERO + "partitioned_param_coordinator", "PartitionedParameterCoordinator", "fetch_sub_module"
_STAGE3 = "DeepSpeedZeroOptimizer_Stage3"
_REDUCES = _ZERO + "stage3", _STAGE3, f"_{_STAGE3}__reduce_and_partition_ipg_grads"
NAMED = 3
"""Modules of a bucket that are named."""


def install(rank: Rank) -> None:
    """Names the modules, as soon as these parts of DeepSpeed are imported."""
    phase = ctypes.PyDLL(str(rank.tracer)).phantora_phase
    phase.argtypes, phase.restype = [ctypes.c_char_p], None
    texts = {_FETCHES: fetched, _REDUCES: reduced}

    def meet(module: ModuleType) -> None:
        for (place, owner, function), text in texts.items():
            if module.__name__ == place:
                name_phase(getattr(module, owner, None), function, text, phase)

    on_import([place for place, _, _ in texts], meet)


def name_phase(owner: Any, function: str, text: Callable[..., str], phase: Callable[[bytes], None]) -> None:
    """Gives `phase` the `text` of the arguments while `function` of a class runs."""
    called = getattr(owner, function, None)
    if called is None:  # of another version, whose collectives go without names
        return

    @functools.wraps(called)
    def named(*args: Any, **kwargs: Any) -> Any:
        phase(text(*args).encode())
        try:
            return called(*args, **kwargs)
        finally:
            phase(b"")

    setattr(owner, function, named)


def fetched(_: Any, module: Any, *__: Any) -> str:
    """Text of the call that gathers the parameters of `module`."""
    return f"ZeRO fetch, module {_kept('module_names', module) or type(module).__name__}"


def reduced(optimizer: Any, dtype: Any, *_: Any) -> str:
    """Text of the call that reduces the gradients in the bucket of `dtype`."""
    parameters = optimizer.ipg_buckets[dtype].params
    modules = dict.fromkeys(_kept("param_names", parameter).rpartition(".")[0] for parameter in parameters)
    names = [f"module {name}" for name in modules if name]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(["ZeRO reduce", *names[:NAMED]]) + more


def _kept(names: str, thing: Any) -> str:
    """The name of a module or parameter. DeepSpeed's own functions for it would take time of the host."""
    known = getattr(sys.modules.get("deepspeed.utils.debug"), names, {})
    by_number = getattr(known, "_names", None)
    name = known.get(thing, "") if by_number is None else by_number.get(id(thing), "")
    return str(name)


PATCH = Patch("zero_modules", When.AFTER_TORCH, install)

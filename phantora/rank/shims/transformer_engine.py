"""Transformer Engine's Userbuffers run as they are (docs/frameworks/megatron.md), without multicast.

Transformer Engine refuses GPUs without multicast unless ``UB_SKIPMC`` says to do without it, so that is said for the
script. And in a folded run the ranks of a tensor-parallel group, which map each other's memory, must all be processes.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

from phantora.errors import PhantoraError
from phantora.rank.fold import groups
from phantora.rank.messages import tell
from phantora.rank.routing import Routing
from phantora.rank.shims import Shim

NO_MULTICAST = "UB_SKIPMC"


def _apply(module: ModuleType, _: Routing) -> None:
    initialize = getattr(module, "initialize_ub")  # noqa: B009 (a version without it is refused)

    @functools.wraps(initialize)
    def prepared(shape: list[int], tp_size: int, *args: Any, **kwargs: Any) -> Any:
        _check_fold(tp_size)
        if NO_MULTICAST not in os.environ:
            os.environ[NO_MULTICAST] = "1"
            if os.environ.get("RANK", "0") == "0":
                tell(f"Userbuffers run as with {NO_MULTICAST}=1: multicast of NVSwitch is not simulated")
        return initialize(shape, tp_size, *args, **kwargs)

    vars(module)["initialize_ub"] = prepared


def _check_fold(tp_size: int) -> None:
    """Userbuffers takes `tp_size` neighbouring ranks to be a group."""
    processes = groups.processes()
    first = int(os.environ.get("RANK", "0")) // tp_size * tp_size
    if processes is None or processes.issuperset(range(first, first + tp_size)):
        return
    raise PhantoraError(
        f"Userbuffers in a folded run need all ranks of a tensor-parallel group as processes, {first} to "
        f"{first + tp_size - 1}: write the axis tp={tp_size}:all in --fold, or leave out --tp-comm-overlap"
    )


SHIM = Shim(
    "transformer-engine",
    (),
    "transformer_engine.pytorch.module.base",
    guarded="initialize_ub",
    apply=_apply,
    does="overlaps products with communication",
    remedy="leave out --tp-comm-overlap (ub_overlap_ag, ub_overlap_rs, initialize_ub)",
    routes=False,
)

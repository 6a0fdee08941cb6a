"""Transformer Engine's Userbuffers: products whose kernels exchange their tiles with other GPUs while they run.

They wait for flags that kernels of peers write, of which the simulator sees nothing: a step would come out without its
communication. So they are refused.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NoReturn

from phantora.errors import PhantoraError
from phantora.launch.routing import Routing
from phantora.launch.shims import Shim

REMEDY = "leave out --tp-comm-overlap (ub_overlap_ag, ub_overlap_rs, initialize_ub)"


def _apply(module: ModuleType, _: Routing) -> None:
    getattr(module, "initialize_ub")  # noqa: B009 (a version without it is refused)

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise PhantoraError(f"Transformer Engine's Userbuffers are not simulated; {REMEDY}")

    vars(module)["initialize_ub"] = refuse


SHIM = Shim(
    "transformer-engine", (), "transformer_engine.pytorch.module.base", "initialize_ub", _apply,
    "overlaps products with communication", REMEDY, routes=False,
)  # fmt: skip

"""What is changed in a framework at run time, so that it meets the values which a simulation lacks
and needs no operators of its own compiled for a GPU.

One module per framework with its :class:`Shim`. It is applied in the rank, right after the
framework's own module has run, and only changes what a kernel would have computed (see `values`) or
which kernel computes it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

from phantora.errors import PhantoraError
from phantora.launch.importhook import after_import
from phantora.launch.routing import FRAMEWORK, OPTION, Routing, parse_routing

VARIABLE = "PHANTORA_MOE_ROUTING"


@dataclass(frozen=True)
class Shim:
    """One change of one framework."""

    distribution: str
    """Its name on PyPI."""
    versions: tuple[str, ...]
    """Known ones; ``0.16`` covers ``0.16.1``. None named: any."""
    module: str
    """The module after whose import `apply` is called."""
    guarded: str | Callable[[ModuleType, Callable[..., None]], None]
    """The function of `module`, or ``Class.method``, without which the change does not matter: it fails in an unknown
    version, and so does the import where there is none of this name. Or what makes the given function, which fails,
    stand before each use of what the change is about."""
    apply: Callable[[ModuleType, Routing], None]
    does: str = "routes tokens to experts"
    remedy: str = f"leave its routing as it is, by zeros, with {OPTION} {FRAMEWORK}"
    routes: bool = True
    """Only applied when the routing is simulated."""

    def meet(self, module: ModuleType, routing: Routing) -> None:
        """Applies the shim, or sees to it that a version it does not know says so when it routes."""
        try:
            found = version(self.distribution)
        except PackageNotFoundError:
            found = "of unknown version"
        if not self.versions or any(found == known or found.startswith(known + ".") for known in self.versions):
            self.apply(module, routing)
        else:
            self._refuse(module, found)

    def _refuse(self, module: ModuleType, found: str) -> None:
        message = (
            f"{self.distribution} {found} {self.does} in a way that is not known here (known: "
            f"{', '.join(self.versions)}); install {self.distribution}=={self.versions[-1]}, or {self.remedy}"
        )

        def refuse(*_: Any, **__: Any) -> None:
            raise PhantoraError(message)

        if callable(self.guarded):
            self.guarded(module, refuse)
            return
        owner, _, function = self.guarded.rpartition(".")
        try:
            holder = getattr(module, owner) if owner else module
            getattr(holder, function)
            setattr(holder, function, refuse)
        except AttributeError:
            raise PhantoraError(message) from None


def shims() -> tuple[Shim, ...]:
    """All that there are."""
    from phantora.launch.shims import deepspeed, megatron, torchtitan, transformers

    return (
        deepspeed.FUSED_ADAM, deepspeed.CPU_ADAM, megatron.SHIM, torchtitan.SHIM, torchtitan.ASYNC_TP,
        transformers.SHIM,
    )  # fmt: skip


@cache
def announce(routing: Routing) -> None:
    """Says once that the tokens per expert are an assumption."""
    if os.environ.get("RANK") == "0":
        print(f"phantora: note: tokens per expert: {routing.spec} ({OPTION})", file=sys.stderr, flush=True)


def install() -> None:
    """Applies each shim as soon as its framework is imported in this rank; the variable has the routing."""
    routing = parse_routing(os.environ.get(VARIABLE, FRAMEWORK))
    known = {shim.module: shim for shim in shims() if routing.simulated or not shim.routes}
    after_import(known.__contains__, lambda module: known[module.__name__].meet(module, routing))
    for name, shim in known.items():
        if name in sys.modules:  # --preload
            shim.meet(sys.modules[name], routing)

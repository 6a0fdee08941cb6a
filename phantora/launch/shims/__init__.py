"""What is changed in a framework at run time, so that it meets the values which a simulation lacks.

One module per framework, each with one :class:`Shim`. It is applied in the rank, right after the
framework's own module has run, and only changes what a kernel would have computed: see `values`.
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
    """Routing for one framework."""

    distribution: str
    """Its name on PyPI."""
    versions: tuple[str, ...]
    """Known ones; ``0.16`` covers ``0.16.1``."""
    module: str
    """The module after whose import `apply` is called."""
    guarded: str
    """The class of `module` without which no expert is routed: in an unknown version it cannot be made."""
    apply: Callable[[ModuleType, Routing], None]

    def meet(self, module: ModuleType, routing: Routing) -> None:
        """Applies the shim, or sees to it that a version it does not know says so when it routes."""
        try:
            found = version(self.distribution)
        except PackageNotFoundError:
            found = "of unknown version"
        if any(found == known or found.startswith(known + ".") for known in self.versions):
            self.apply(module, routing)
        else:
            self._refuse(module, found)

    def _refuse(self, module: ModuleType, found: str) -> None:
        message = (
            f"{self.distribution} {found} routes tokens to experts in a way that is not known here "
            f"(known: {', '.join(self.versions)}); install {self.distribution}=={self.versions[-1]}, or leave "
            f"its routing as it is, by zeros, with {OPTION} {FRAMEWORK}"
        )

        def refuse(*_: Any, **__: Any) -> None:
            raise PhantoraError(message)

        try:
            getattr(module, self.guarded).__init__ = refuse
        except AttributeError:
            raise PhantoraError(message) from None


def shims() -> tuple[Shim, ...]:
    from phantora.launch.shims import torchtitan

    return (torchtitan.SHIM,)


@cache
def announce(routing: Routing) -> None:
    """Says once that the tokens per expert are an assumption."""
    if os.environ.get("RANK") == "0":
        print(f"phantora: note: tokens per expert: {routing.spec} ({OPTION})", file=sys.stderr, flush=True)


def install() -> None:
    """Applies each shim as soon as its framework is imported in this rank; the variable has the routing."""
    routing = parse_routing(os.environ.get(VARIABLE, FRAMEWORK))
    if not routing.simulated:
        return
    known = {shim.module: shim for shim in shims()}
    after_import(known.__contains__, lambda module: known[module.__name__].meet(module, routing))
    for name, shim in known.items():
        if name in sys.modules:  # --preload
            shim.meet(sys.modules[name], routing)

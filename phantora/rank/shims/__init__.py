"""Changes to frameworks at run time: for values that only a kernel can compute (`values`), and for operators that would
be compiled for a GPU.

Each module has the :class:`Shim` of a framework, which is applied in the rank right after the import of the
framework's own module.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

from phantora.errors import PhantoraError
from phantora.extensions import extensions
from phantora.rank import deep_ep
from phantora.rank.importhook import on_import
from phantora.rank.messages import tell
from phantora.rank.patch import Patch, When
from phantora.rank.routing import FRAMEWORK, OPTION, Routing, parse_routing
from phantora.spec import rank_spec

LAYER = "phantora_layer"  # attribute of what routes or has experts: the number of its layer


@dataclass(frozen=True)
class Shim:
    """One change of one framework."""

    distribution: str
    """Name of the framework on PyPI."""
    versions: tuple[str, ...]
    """Known ones; ``0.16`` covers ``0.16.1``. None named: any."""
    module: str
    """The module after whose import `apply` is called."""
    guarded: str | Callable[[ModuleType, Callable[..., None]], None]
    """The function of `module`, or ``Class.method``, without which the change does not matter: it fails in an unknown
    version, and so does the import where there is none of this name. Or what makes the given function, which fails,
    stand before each use of what the change is about."""
    apply: Callable[[ModuleType, Routing], None]
    _: KW_ONLY
    does: str = "routes tokens to experts"
    remedy: str = f"leave its routing as it is, by zeros, with {OPTION} {FRAMEWORK}"
    routes: bool = True
    """Only applied when the routing is simulated."""
    declares: str = ""
    """The module whose ``__version__`` is that of a checkout on PYTHONPATH."""

    @property
    def found(self) -> str:
        """The installed version; of a checkout on PYTHONPATH, the one that its package declares."""
        try:
            return version(self.distribution)
        except PackageNotFoundError:
            declared = getattr(sys.modules.get(self.declares), "__version__", "of unknown version")
            return str(declared).partition("+")[0]

    def supports(self, found: str) -> bool:
        """Was the shim written for this version of its package?"""
        return not self.versions or any(found == known or found.startswith(known + ".") for known in self.versions)

    def meet(self, module: ModuleType, routing: Routing) -> None:
        """Applies the shim, or sees to it that a version it does not know says so when it routes."""
        found = self.found
        if not self.supports(found):
            self._refuse(module, found)
            return
        try:
            self.apply(module, routing)
        except (AttributeError, ImportError):  # what it changes is not where it was
            self._refuse(module, found)

    def lies_in(self, package: ModuleType) -> bool:
        """True if the module is one of the files of `package`, its outermost one. Nothing is imported."""
        inside = self.module.split(".")[1:]
        places = [Path(path, *inside) for path in package.__path__]
        return any(place.is_dir() or place.with_suffix(".py").exists() for place in places)

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
    from phantora.rank.shims import deepspeed, megatron, ray, torchtitan, transformer_engine, transformers, trl

    return (
        deepspeed.FUSED_ADAM,
        deepspeed.CPU_ADAM,
        deepspeed.RANGES,
        megatron.SHIM,
        torchtitan.SHIM,
        torchtitan.COMMON,
        torchtitan.ASYNC_TP,
        transformer_engine.SHIM,
        transformers.SHIM,
        trl.PHASES,
        ray.CLOCKS,
        *extensions("phantora.shims"),
    )


def missing(package: ModuleType, shims: Collection[Shim]) -> str | None:
    """Message about a framework none of whose `shims` has its module in `package`; None: one has, or none is needed.

    Such a framework would route by zeros without a word.
    """
    routers = [shim for shim in shims if shim.routes and shim.module.partition(".")[0] == package.__name__]
    if not routers or any(shim.lies_in(package) for shim in routers):
        return None
    known = ", ".join(version for shim in routers for version in shim.versions)
    places = " or ".join(shim.module for shim in routers)
    return (
        f"{routers[0].distribution} {routers[0].found} has no {places}: how it {routers[0].does} was not found, and "
        f"{OPTION} has no effect on it; models without experts are not affected (known: {known})"
    )


@cache
def announce(routing: Routing) -> None:
    """Says once that the tokens per expert are an assumption."""
    if os.environ.get("RANK") == "0":
        tell(f"tokens per expert: {routing.spec} ({OPTION})")


def install() -> None:
    """Applies each shim as soon as its framework is imported in this rank."""
    deep_ep.install()
    routing = parse_routing(rank_spec().moe_routing)
    known = {shim.module: shim for shim in shims() if routing.simulated or not shim.routes}
    packages = {name.partition(".")[0] for name in known} - {"megatron"}  # a namespace, of which each part is optional

    def meet(module: ModuleType) -> None:
        name = module.__name__
        if name in packages and os.environ.get("RANK", "0") == "0" and (message := missing(module, known.values())):
            print(f"phantora: warning: {message}", file=sys.stderr, flush=True)
        if name in known:
            known[name].meet(module, routing)

    on_import(sorted(packages | known.keys()), meet)


PATCH = Patch("shims", When.IN_RANK, lambda _: install())

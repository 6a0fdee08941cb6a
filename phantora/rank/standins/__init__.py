"""Stand-ins for the compiled halves of extensions, which take nvcc to build.

Where a package's Python half is installed and imports a compiled module that is not, a stand-in takes its place: its
functions check arguments, return tensors of the right shapes without values, and launch a kernel that has the price of
an operator. A run names those that it used. Installed modules come first.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from phantora.rank.messages import tell
from phantora.rank.patch import Patch, Rank, When


@dataclass(frozen=True)
class Standin:
    """One compiled module."""

    module: str
    package: str
    """The package whose compiled half it is, on PyPI."""
    source: str
    """The module of ours with its functions."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The functions by the compiled module's name for them; none: all public ones of `source` that are its own."""


STANDINS = (
    Standin("flash_attn_2_cuda", "flash-attn", "phantora.rank.standins.flash_attn_2"),
    Standin(
        "causal_conv1d_cuda",
        "causal-conv1d",
        "phantora.rank.standins.state_space",
        {f"causal_conv1d_{name}": f"causal_conv1d_{name}" for name in ("fwd", "bwd", "update")},
    ),
    Standin(
        "selective_scan_cuda", "mamba-ssm", "phantora.rank.standins.state_space", {"fwd": "scan_fwd", "bwd": "scan_bwd"}
    ),
    Standin("grouped_gemm_backend", "grouped_gemm", "phantora.rank.standins.grouped"),
)
_said: set[str] = set()


class _Loader(importlib.abc.Loader):
    def __init__(self, standin: Standin) -> None:
        self._standin = standin

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(functions(self._standin))


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        found = next((standin for standin in STANDINS if standin.module == name), None)
        return importlib.machinery.ModuleSpec(name, _Loader(found)) if found else None


def functions(standin: Standin) -> dict[str, Callable[..., Any]]:
    """The functions of a stand-in, which name it at their first call."""
    source = importlib.import_module(standin.source)
    own = {name: name for name, value in vars(source).items() if getattr(value, "__module__", "") == source.__name__}
    public = {name: own[name] for name in own if not name.startswith("_")}
    return {name: _naming(standin, getattr(source, ours)) for name, ours in (standin.names or public).items()}


def _naming(standin: Standin, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if standin.module not in _said:
            _said.add(standin.module)
            if os.environ.get("RANK", "0") == "0":
                tell(f"{standin.module} of {standin.package} is not installed: a stand-in with its shapes and times")
        return function(*args, **kwargs)

    return call


def install(rank: Rank) -> None:
    """Finds stand-ins where nothing else finds a module of that name."""
    from phantora.rank.standins import kernels

    kernels.announce_to(rank.tracer)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


PATCH = Patch("stand-ins", When.AFTER_TORCH, install)

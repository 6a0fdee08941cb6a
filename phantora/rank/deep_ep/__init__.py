"""DeepEP in a rank: the module ``deep_ep`` with its Python interface, whether or not DeepEP is installed.

`buffer` has the calls of both modes, `hybrid` those of HybridEP. `routes` decides which tokens go where, `exchange`
launches a kernel. ``phantora/sim/collectives/experts.py`` has its duration.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

MODULES = ("deep_ep", "deep_ep.utils", "deep_ep_cpp")


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        from phantora.rank.deep_ep import buffer, hybrid

        names = (buffer.Buffer, buffer.Config, buffer.EventHandle, buffer.EventOverlap, hybrid.HybridEPBuffer)
        for each in names:
            setattr(module, each.__name__, each)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in MODULES:
            return None
        return importlib.machinery.ModuleSpec(name, _Loader(), is_package=name == "deep_ep")


def install() -> None:
    """Makes `import deep_ep` give this package's classes in the rank."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())

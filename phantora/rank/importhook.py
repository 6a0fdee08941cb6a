"""Running a function on a module right after its first import: ``on_import`` for known names."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Collection, Sequence
from types import ModuleType

Callback = Callable[[ModuleType], None]


def excluded(callback: Callable[..., None], *arguments: object) -> None:
    """Calls `callback`. What Python does meanwhile moves no clock: ``stub/clock/frames.c`` knows this function."""
    callback(*arguments)


class _Loader(importlib.abc.Loader):
    """The module's own loader, followed by the callbacks."""

    def __init__(self, loader: importlib.abc.Loader, callback: Callback) -> None:
        self._loader = loader
        self._callback = callback

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module shall look as if we had never been here (pkgutil and inspect ask the loader).
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        excluded(self._callback, module)


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls `callback` with each module that `wanted` names, once it has run."""

    def __init__(self, wanted: Callable[[str], bool], callback: Callback) -> None:
        self._wanted = wanted
        self._callback = callback
        self._searching: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds the module as others would, with a loader that calls back when it is imported."""
        if name in self._searching or not self._wanted(name):
            return None
        self._searching.add(name)
        try:
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                spec: importlib.machinery.ModuleSpec | None = find(name, path, target) if find else None
                if spec is not None:
                    break
            else:
                return None
        finally:
            self._searching.discard(name)
        if spec.loader is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, self._callback)
        return spec


def on_import(names: Collection[str], callback: Callback) -> None:
    """Calls `callback` with each of the modules `names` right after its import: now for those that are imported (by
    torch itself, or by ``--preload``)."""
    after_import(names.__contains__, callback)
    for name in names:
        if name in sys.modules:
            callback(sys.modules[name])


def after_import(wanted: Callable[[str], bool], callback: Callback) -> AfterImport:
    """Installs the hook in front of all finders and returns it (to be removed from sys.meta_path)."""
    hook = AfterImport(wanted, callback)
    sys.meta_path.insert(0, hook)
    return hook

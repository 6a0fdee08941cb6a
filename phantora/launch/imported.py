"""The files behind the modules of a process that lives longer than a command: whether they have changed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

_INSTALLED = ("site-packages", "dist-packages")
"""Folders whose .pth files decide what can be imported at all."""


class ImportedFiles:
    """What this process has imported so far, and the folders of installed packages."""

    def __init__(self) -> None:
        self._states = {path: _state(path) for path in _paths()}

    def changed(self) -> bool:
        """True if a file was written, replaced or removed since, or a package installed."""
        return any(_state(path) != state for path, state in self._states.items())


def _paths() -> Iterator[str]:
    yield from (path for path in sys.path if os.path.basename(path) in _INSTALLED)
    for module in list(sys.modules.values()):
        # A module that loads its parts when they are asked for must not be asked.
        path = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(path, str):
            yield path


def _state(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino

"""Extensions by installed packages: entry points of Phantora's groups (docs/extensions.md).

| group | object |
| --- | --- |
| ``phantora.exports`` | a ``phantora.trace.export.registry.Format`` |
| ``phantora.importers`` | a ``phantora.importers.Reader`` |
| ``phantora.shims`` | a ``phantora.rank.shims.Shim`` |
| ``phantora.gpus`` | the path of a folder of GPU files (.toml) |
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from phantora.errors import PhantoraError


def extensions(group: str) -> list[Any]:
    """The objects of the entry points of `group`, by name. Raises PhantoraError for one that cannot be loaded."""
    found: list[Any] = []
    if not any(group in _groups(folder, _changed(folder)) for folder in sys.path):
        return found
    for point in sorted(entry_points(group=group), key=lambda point: point.name):
        try:
            found.append(point.load())
        except Exception as error:
            of = point.dist.name if point.dist else "unknown"
            raise PhantoraError(
                f"the package {of} adds {point.value} to {group}, which fails: {type(error).__name__}: {error}; "
                "repair or remove the package"
            ) from error
    return found


@cache
def _groups(folder: str, _: int) -> frozenset[str]:
    """Our groups that the packages in a folder name. ``entry_points`` parses the metadata of all: 0.1 s for 300."""
    found: set[str] = set()
    for path in _metadata(folder or "."):
        try:
            with open(os.path.join(path, "entry_points.txt"), encoding="utf-8") as file:
                found.update(line.strip()[1:-1] for line in file if line.startswith(f"[{__package__}."))
        except OSError:
            continue
    return frozenset(found)


def _metadata(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.name.endswith((".dist-info", ".egg-info"))]
    except OSError:
        return []


def _changed(folder: str) -> int:
    """When an entry of a folder of ``sys.path`` was made or deleted."""
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0

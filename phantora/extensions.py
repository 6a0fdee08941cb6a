"""Extensions by installed packages: entry points of Phantora's groups (docs/extensions.md).

| group | object |
| --- | --- |
| ``phantora.exports`` | a ``phantora.trace.export.registry.Format`` |
| ``phantora.importers`` | a ``phantora.importers.Reader`` |
| ``phantora.shims`` | a ``phantora.rank.shims.Shim`` |
| ``phantora.gpus`` | the path of a folder of GPU files (.toml) |
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from phantora.errors import PhantoraError


def extensions(group: str) -> list[Any]:
    """The objects of the entry points of `group`, by name. Raises PhantoraError for one that cannot be loaded."""
    found = []
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

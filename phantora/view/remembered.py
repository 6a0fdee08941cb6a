"""The verdict of a log that was read before, from the cache: a page shows it while a long log is read again."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

import orjson

from phantora.cache import cache_directory, make_folder, make_room
from phantora.errors import PhantoraError
from phantora.trace.analysis.report import Report
from phantora.trace.analysis.summary import lines
from phantora.version import version

_MOST = 256  # logs


def remember(log: str, report: Report) -> None:
    """Keeps the lines of the whole run's `report`. A cache that cannot be written keeps none."""
    with suppress(OSError, PhantoraError):
        path = _path(log)
        make_room(make_folder(path.parent), _MOST)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(orjson.dumps(lines(report)))
        partial.replace(path)


def remembered(log: str) -> list[tuple[str, str]]:
    """Words with their texts; none of a log that was not read, or has changed since."""
    try:
        return [(str(word), str(text)) for word, text in orjson.loads(_path(log).read_bytes())]
    except (OSError, PhantoraError, ValueError):
        return []


def _path(log: str) -> Path:
    about = os.stat(log)
    key = f"{version()} {os.path.realpath(log)} {about.st_size} {about.st_mtime_ns}"
    return cache_directory() / "verdicts" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"

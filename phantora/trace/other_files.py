"""Files that are given for a log or a trace and have a command of their own."""

from __future__ import annotations

import os
from pathlib import Path

_PICKLE = b"\x80"  # first byte of protocol 2 and later
_TRACES = (
    ".json",
    ".json.gz",
    ".nsys-rep",
    ".sqlite",
    ".sqlite3",
    ".db",
    ".parquet",
    ".et",
    "_trace.csv",
    ".xplane.pb",
)


def is_pickle(path: str | Path) -> bool:
    """True if the file at `path` begins as pickles of protocol 2 and later do."""
    try:
        with open(path, "rb") as file:
            return file.read(1) == _PICKLE
    except OSError:
        return False


def dump_of(path: str | os.PathLike[str]) -> str:
    """The command for a file of torch that is no trace; empty for other files."""
    name = os.fspath(path)
    if is_pickle(name):
        return f"torch dumps it at a hang or an out-of-memory error; `phantora why {name}` names the cause"
    return ""


def instead(path: str | os.PathLike[str]) -> str:
    """The command for a file that is no log; empty for one that no command reads."""
    name = os.fspath(path)
    if name.endswith(_TRACES):
        return f"make one of this trace: `phantora import {name}`"
    return dump_of(name)

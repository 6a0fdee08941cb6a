"""Logs by their paths; the trace of a profiler is imported first."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from phantora.cli.progress import progress
from phantora.version import version

if TYPE_CHECKING:
    from phantora.trace.reader import Log


def log_of(path: str) -> Log:
    """The log at `path`, or of the trace of a profiler there, which the cache keeps. Raises PhantoraError."""
    from phantora.importers import suffixes
    from phantora.trace.reader import is_log, open_log

    if path.endswith(suffixes()) and os.path.isfile(path) and not is_log(path):
        log = open_log(_imported(path))
        log.shown = path
        return log
    return open_log(path)


def note_newer(paths: Sequence[str]) -> None:
    """A line for each log of which a later run has left another one, with the name that a failed run or one without -o
    chooses."""
    from phantora.trace.locking import is_being_written

    given = {os.path.realpath(path) for path in paths}
    for path in paths:
        newest = _newest(Path(path))
        if newest is not None and os.path.realpath(newest) not in given:
            state = "a run writes" if is_being_written(str(newest)) else "a later run wrote"
            print(f"phantora: note: this is {path}; {state} {newest}", file=sys.stderr)


def _newest(path: Path) -> Path | None:
    """The newest log next to `path` of a later run of the same script: ``NAME.partial.arrow``, ``NAME-2.arrow``."""
    from phantora.errors import PhantoraError
    from phantora.trace.reader import is_log, open_log

    if path.suffix != ".arrow" or not path.is_file():
        return None
    later = re.compile(re.escape(path.stem) + r"(-[1-9]\d*)?(\.partial)?\.arrow")
    try:
        found = [(o.stat().st_mtime_ns, o) for o in path.parent.iterdir() if o != path and later.fullmatch(o.name)]
        for made, other in sorted(found, reverse=True):
            if made <= path.stat().st_mtime_ns:
                return None
            own = other.name == f"{path.stem}.partial.arrow"  # else the name may be a user's choice
            if is_log(other) and (own or _script(open_log(other)) == _script(open_log(path))):
                return other
    except (OSError, PhantoraError):  # a hint: what is wrong with `path` is told by its reader
        return None
    return None


def _script(log: Log) -> list[str]:
    return [os.path.basename(word) for word in log.metadata.command if word.endswith(".py")][:1]


def _imported(path: str) -> str:
    from phantora.cache import cache_directory, make_folder
    from phantora.importers import import_traces, suffixes

    about = os.stat(path)
    key = hashlib.sha256(f"{version()} {os.path.realpath(path)} {about.st_size} {about.st_mtime_ns}".encode())
    folder = make_folder(cache_directory() / "imports" / key.hexdigest()[:16])
    name = os.path.basename(path)
    stem = name.removesuffix(max((suffix for suffix in suffixes() if name.endswith(suffix)), key=len))
    target = folder / f"{stem}.arrow"
    if not target.exists():
        partial = target.with_suffix(".partial.arrow")
        with progress(f"importing {path}") as reported:
            imported = import_traces([path], str(partial), version(), progress=reported)
        for note in imported.notes:
            print(f"phantora: {note}", file=sys.stderr)
        partial.replace(target)
    print(f"phantora: {path} was imported as {target}", file=sys.stderr)
    return str(target)

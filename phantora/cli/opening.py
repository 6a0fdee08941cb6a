"""Logs by their paths; the trace of a profiler is imported first."""

from __future__ import annotations

import hashlib
import os
import sys
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

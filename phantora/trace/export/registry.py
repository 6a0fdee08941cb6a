"""Which writer makes which file."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from phantora.errors import PhantoraError
from phantora.extensions import extensions
from phantora.outputs import why_not_written
from phantora.trace.export import chakra, chrome, memory_viz, parquet, perfetto, scalars
from phantora.trace.export.selection import Progress, Selection
from phantora.trace.reader import Log, open_log


@dataclass(frozen=True)
class Format:
    """A format of timelines and what writes it."""

    name: str
    suffixes: tuple[str, ...]
    description: str
    write: Callable[[Log, str, Selection, Progress | None], list[str]]
    """Writes the export and returns the paths of its files."""


FORMATS = (
    Format(
        "perfetto",
        (".perfetto", ".pftrace", ".perfetto-trace", ".perfetto.gz", ".pftrace.gz"),
        "native trace for ui.perfetto.dev and Perfetto's trace processor",
        perfetto.write,
    ),
    Format(
        "chrome",
        (".json", ".json.gz"),
        "Kineto's JSON for chrome://tracing, ui.perfetto.dev and HolisticTraceAnalysis; "
        "one file per rank",
        chrome.write,
    ),
    Format("memory", (".pickle",), "torch's memory snapshot, for pytorch.org/memory_viz", memory_viz.write),
    Format("tensorboard", (".tensorboard",), "a directory of scalars for TensorBoard", scalars.write_tensorboard),
    Format("chakra", (".et",), "Chakra execution traces, one file per rank: run.0.et", chakra.write),
    Format("parquet", (".parquet",), "the rows, for pandas, polars, DuckDB and Spark", parquet.write),
    Format("wandb", (".wandb",), "scalars as W&B's own log, for `wandb sync`", scalars.write_wandb),
)


def formats() -> tuple[Format, ...]:
    """Ours, and those of installed packages."""
    return (*FORMATS, *extensions("phantora.exports"))


def format_of(path: str) -> Format:
    """The format that `path` asks for by its suffix."""
    for known in formats():
        if path.rstrip("/").endswith(known.suffixes):
            return known
    if path.endswith("/") or os.path.isdir(path):
        return FORMATS[1]
    suffixes = ", ".join(suffix for known in formats() for suffix in known.suffixes)
    raise PhantoraError(
        f"{path}: no timeline format has this suffix; end the path with one of {suffixes}, or /"
    )


def export(
    log: str | os.PathLike[str] | Log, path: str, selection: Selection | None = None, progress: Progress | None = None
) -> list[str]:
    """Writes a timeline of `log` to `path` and returns the paths of the files made."""
    chosen = format_of(path)
    if not isinstance(log, Log):
        log = open_log(log)
    log.require_rows()
    try:
        return chosen.write(log, path, selection or Selection(), progress)
    except OSError as error:
        raise PhantoraError(f"cannot write the timeline {path}: {why_not_written(path, error)}") from error

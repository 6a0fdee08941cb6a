"""Writers by kind of file."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from phantora.errors import PhantoraError
from phantora.extensions import extensions
from phantora.outputs import why_not_written

if TYPE_CHECKING:
    from phantora.trace.export.selection import Progress, Selection
    from phantora.trace.reader import Log


@dataclass(frozen=True)
class Format:
    """A format of timelines and what writes it."""

    name: str
    suffixes: tuple[str, ...]
    description: str
    write: Callable[[Log, str, Selection, Progress | None], list[str]]
    """Writes the export and returns the paths of its files."""


def _writer(module: str, function: str = "write") -> Callable[[Log, str, Selection, Progress | None], list[str]]:
    """The function of a module of this package, which is imported at its first call."""

    def write(log: Log, path: str, selection: Selection, progress: Progress | None) -> list[str]:
        written: list[str] = getattr(import_module(f"phantora.trace.export.{module}"), function)(
            log, path, selection, progress
        )
        return written

    return write


FORMATS = (
    Format(
        "perfetto",
        (".perfetto", ".pftrace", ".perfetto-trace", ".perfetto.gz", ".pftrace.gz"),
        "native trace for ui.perfetto.dev and Perfetto's trace processor",
        _writer("perfetto"),
    ),
    Format(
        "chrome",
        (".json", ".json.gz"),
        "Kineto's JSON for chrome://tracing, ui.perfetto.dev and HolisticTraceAnalysis; one file per rank",
        _writer("chrome"),
    ),
    Format("memory", (".pickle",), "torch's memory snapshot, for pytorch.org/memory_viz", _writer("memory_viz")),
    Format(
        "tensorboard",
        (".tensorboard",),
        "step time, MFU, throughput and memory by step, for TensorBoard",
        _writer("scalars", "write_tensorboard"),
    ),
    Format(
        "wandb", (".wandb",), "the same scalars as W&B's own log, for `wandb sync`", _writer("scalars", "write_wandb")
    ),
    Format(
        "mlflow",
        (".mlflow",),
        "the same scalars as a run in MLflow's SQLite database",
        _writer("scalars", "write_mlflow"),
    ),
    Format("chakra", (".et",), "Chakra execution traces, one file per rank: run.0.et", _writer("chakra")),
    Format("parquet", (".parquet",), "the rows, for pandas, polars, DuckDB and Spark", _writer("parquet")),
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
    raise PhantoraError(f"{path}: no timeline format has this suffix; end the path with one of {suffixes}, or /")


def export(
    log: str | os.PathLike[str] | Log, path: str, selection: Selection | None = None, progress: Progress | None = None
) -> list[str]:
    """Writes a timeline of `log` to `path` and returns the paths of the files made."""
    from phantora.trace.export.selection import Selection
    from phantora.trace.reader import Log, open_log

    chosen = format_of(path)
    if not isinstance(log, Log):
        log = open_log(log)
    log.require_rows()
    try:
        return chosen.write(log, path, selection or Selection(), progress)
    except OSError as error:
        raise PhantoraError(f"cannot write the timeline {path}: {why_not_written(path, error)}") from error

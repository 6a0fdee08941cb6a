"""A package that adds to Phantora: an export, a reader of traces, a shim and a GPU (docs/extensions.md)."""

from __future__ import annotations

import csv
from pathlib import Path
from types import ModuleType

from phantora.importers import Reader, Report
from phantora.importers.rank import CODES, ROW, RankTrace, RowBuilder, Vocabulary
from phantora.rank.routing import Routing
from phantora.rank.shims import Shim
from phantora.trace.analysis.analyze import analyze
from phantora.trace.export.registry import Format
from phantora.trace.export.selection import Progress, Selection
from phantora.trace.reader import Log

GPUS = Path(__file__).parent / "gpus"
"""``--cluster 1x8xEX100`` works: every .toml file of this folder is a GPU."""


def write(log: Log, path: str, selection: Selection, progress: Progress | None = None) -> list[str]:
    """``phantora export run.arrow -o steps.csv``: a line for each step."""
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("step", "ns"))
        rows.writerows((step.number, round(step.times.time)) for step in analyze(log, details=False).steps)
    return [path]


CSV = Format("csv", (".csv",), "the time of each step", write)


def read(path: str, words: Vocabulary, position: int, report: Report | None) -> list[RankTrace]:
    """``phantora import trace.csv``: lines START,END,NAME of the kernels of one rank, in ns."""
    rows = RowBuilder()
    with open(path, newline="") as file:
        for start, end, name in csv.reader(file):
            kernel = {"kind": CODES["kernel"], "name": words.names.number(name), "start": int(start), "end": int(end)}
            kernel |= {"stream": 0, "bytes": 0, "device": 0}
            rows.add([tuple(kernel.get(column, -1) for column in ROW.names)])
    return [RankTrace(rank=position, source=path, rows=rows.rows(), world_size=position + 1)]


READER = Reader(
    reads=lambda path: path.endswith(".csv"),
    read=read,
    suffixes=(".csv",),
    description="START,END,NAME of kernels in ns",
)


def apply(module: ModuleType, routing: Routing) -> None:
    """Runs in each rank after ``my_framework.sampler`` is imported."""
    module.sample = lambda logits: 0  # type: ignore[attr-defined]


SHIM = Shim(
    "my-framework",
    ("1.0",),
    "my_framework.sampler",
    guarded="sample",
    apply=apply,
    does="samples",
    remedy="leave it out",
    routes=False,
)

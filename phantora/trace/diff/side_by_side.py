"""More than two runs side by side: a column each, the first is what the others are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from phantora.trace.analysis.report import Report
from phantora.trace.analysis.summary import step_with_bar
from phantora.trace.analysis.units import amount, size
from phantora.trace.diff.compare import Difference
from phantora.trace.diff.render import headline

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _per_second(report: Report, name: str) -> str:
    value = getattr(report.headline.throughput, f"{name}_per_second", 0.0)
    return amount(value) if value else "-"


def _share(report: Report, name: str) -> str:
    return f"{100 * getattr(report.steady, name) / report.steady.time:.1f}%" if report.steady.time else "-"


ROWS: tuple[tuple[str, Callable[[Report], str]], ...] = (
    ("cluster", lambda r: str(r.metadata["cluster"])),
    ("step", lambda r: step_with_bar(r.headline)),
    ("MFU", lambda r: "-" if r.headline.mfu is None else f"{100 * r.headline.mfu:.1f}%"),
    ("tokens/s", lambda r: _per_second(r, "tokens")),
    ("samples/s", lambda r: _per_second(r, "samples")),
    ("compute", lambda r: _share(r, "compute")),
    ("exposed", lambda r: _share(r, "exposed")),
    ("idle", lambda r: _share(r, "idle")),
    ("peak allocated", lambda r: size(max((rank.gpu.peak_allocated for rank in r.ranks), default=0))),
    ("peak reserved", lambda r: size(max((rank.gpu.peak_reserved for rank in r.ranks), default=0))),
)


def render_many(reports: Sequence[Report], differences: Sequence[Difference], console: Console) -> None:
    """`differences` are those of the second and later runs from the first."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    for letter, report in zip(_LETTERS, reports, strict=False):
        table.add_column(f"{letter} {Path(report.path).stem[:20]}", justify="right", no_wrap=True)
    for name, value in ROWS:
        table.add_row(name, *(value(report) for report in reports))
    console.print(table)
    for letter, difference in zip(_LETTERS[1:], differences, strict=False):
        console.print(f"{letter}: {headline(difference)}", highlight=False, markup=False, soft_wrap=True)

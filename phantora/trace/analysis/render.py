"""A summary as tables for the terminal, at most 100 columns wide."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from phantora.trace.analysis.summary import Summary, Times

_MOST_RANKS = 16  # ranks shown one by one; more are only summed up
_MOST_STEPS = 12


def render(summary: Summary, console: Console) -> None:
    """Prints `summary`."""
    meta = summary.metadata
    head = [
        meta["cluster"] or meta["gpu"] or "cluster unknown",
        f"{len(summary.ranks)} ranks",
        f"{summary.rows:,} rows",
    ]
    console.print(f"[bold]{summary.path}[/bold]  " + ", ".join(head), highlight=False)
    if not summary.complete:
        console.print("[yellow]The run was cut short: the log ends where its last whole batch does.[/yellow]")
    _steps(summary, console)
    _ranks(summary, console)
    _shares(summary, console)
    _cost(summary, console)


def _table(title: str, *columns: str) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    return table


_COLUMNS = ("time", "compute", "comm", "exposed", "overlap", "copy", "idle", "MFU", "allocated", "reserved")


def _row(times: Times) -> list[str]:
    def share(part: float) -> str:
        return f"{100 * part / times.time:.1f}%" if times.time else "-"

    return [
        duration(times.time),
        share(times.compute),
        share(times.communication),
        share(times.exposed),
        "-" if times.overlap is None else f"{100 * times.overlap:.1f}%",
        share(times.copy),
        share(times.idle),
        "-" if times.mfu is None else f"{100 * times.mfu:.1f}%",
        size(times.peak_allocated),
        size(times.peak_reserved),
    ]


def _steps(summary: Summary, console: Console) -> None:
    source = {
        "profiler": "by ProfilerStep annotations",
        "optimizer": "each ends with its optimizer; the first holds start-up",
        "run": "the whole run as one",
    }[summary.step_source]
    table = _table(f"\nSteps ({source}; mean over ranks)", "step", *_COLUMNS)
    for step in summary.steps[:_MOST_STEPS]:
        table.add_row(str(step.number), *_row(step.times))
    if len(summary.steps) > _MOST_STEPS:
        table.add_row(f"+{len(summary.steps) - _MOST_STEPS}", *["" for _ in _COLUMNS])
    if len(summary.steps) > 1:
        table.add_row("mean*", *_row(summary.steady), style="bold")
    console.print(table)
    if len(summary.steps) > 1:
        console.print("* without the first step", style="dim")


def _ranks(summary: Summary, console: Console) -> None:
    table = _table("\nRanks (first to last GPU activity)", "rank", *_COLUMNS)
    for rank in summary.ranks[:_MOST_RANKS]:
        table.add_row(str(rank.rank), *_row(rank.gpu))
    if len(summary.ranks) > _MOST_RANKS:
        table.add_row(f"+{len(summary.ranks) - _MOST_RANKS}", *["" for _ in _COLUMNS])
    console.print(table)


def _shares(summary: Summary, console: Console) -> None:
    for title, shares in (
        ("What the durations rest on", summary.by_provenance),
        ("Device time by class", summary.by_class),
    ):
        text = ", ".join(f"{name} {100 * share:.1f}%" for name, share in shares.items())
        console.print(f"\n[bold]{title}[/bold]: {text or '-'}", highlight=False)


def _cost(summary: Summary, console: Console) -> None:
    numbers = {k: v for k, v in summary.trailer.items() if isinstance(v, int | float) and k != "rows"}
    if numbers:
        text = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
        console.print(f"\n[bold]The simulation itself[/bold]: {text}", highlight=False)


def duration(ns: float) -> str:
    """A time in a unit that fits: ``12.34 ms``."""
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(ns) >= scale:
            return f"{ns / scale:.2f} {unit}"
    return f"{ns:.0f} ns"


def size(count: int) -> str:
    """Bytes as GiB or MiB, as torch prints memory."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"

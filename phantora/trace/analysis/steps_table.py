"""Tables of a report's steps and ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.console import Console

from phantora.trace.analysis.analyze import mean_times, steps_of_mean
from phantora.trace.analysis.communicators import ranges
from phantora.trace.analysis.report import Report, StepTimes, Times
from phantora.trace.analysis.text_table import text_table
from phantora.trace.analysis.units import cut, duration, percent, size
from phantora.trace.schema import REAL

_MOST_RANKS = 16  # ranks shown one by one; more are only summed up
_MOST_STEPS = 12
_NEAR = 0.15  # of the typical step: steps that differ by less are one row of a long table
_NUMBERS = 14  # characters of a row's numbers

_WIDE = 95  # columns of a terminal that has room for all of a step
_COLUMNS: dict[str, Callable[[Times], str]] = {
    "time": lambda t: duration(t.time),
    "compute": lambda t: percent(t.compute, t.time),
    "comm": lambda t: percent(t.communication, t.time),
    "exposed": lambda t: percent(t.exposed, t.time),
    "overlap": lambda t: "-" if t.overlap is None else f"{100 * t.overlap:.1f}%",
    "copy": lambda t: percent(t.copy, t.time),
    "idle": lambda t: percent(t.idle, t.time),
    "MFU": lambda t: "-" if t.mfu is None else f"{100 * t.mfu:.1f}%",
    "allocated": lambda t: size(t.peak_allocated) if t.peak_allocated else "-",
    "reserved": lambda t: size(t.peak_reserved) if t.peak_reserved else "-",
}


def _columns(console: Console) -> dict[str, Callable[[Times], str]]:
    """Columns for which the terminal has room."""
    left_out = () if console.width >= _WIDE else ("overlap", "copy")
    return {name: show for name, show in _COLUMNS.items() if name not in left_out}


def _row(times: Times, columns: Iterable[Callable[[Times], str]]) -> list[str]:
    return [show(times) for show in columns]


_SOURCES = {
    "optimizer": "each ends with its optimizer",
    "profiler": "by ProfilerStep annotations",
    "dataloader": "each begins with its batch",
    "backward": "each ends with its backward pass",
    "pattern": "by repetition of what is launched",
    "run": "the whole run as one",
    "time": "the stretch asked for as one",
}


def print_steps(report: Report, console: Console) -> None:
    """A row for each step, or for all that look the same, and the mean of the steady ones."""
    source = _SOURCES.get(report.step_source) or f"each begins with the {report.step_source}"
    columns = _columns(console)
    table = text_table(f"\nSteps ({source}; mean over ranks)", "step", *columns)
    for rows in _folded(report.steps):
        cells = _row(_mean(report, rows), columns.values())
        table.add_row(_numbers(rows) + "*" * bool(rows[0].note), *cells)
    if len(report.steps) > 1:
        table.add_row("steady", *_row(report.steady, columns.values()), style="bold")
    console.print(table)
    if report.headline.apart:
        console.print("* excluded from the mean of the steady steps", style="dim")
    first = report.steps[0]
    if first.note == "start-up" and report.metadata.get("host_mode") != REAL:
        text = f"Step {first.number} begins with the program's first kernel: it has the set-up that scripts do not time"
        console.print(text, style="dim")


def _mean(report: Report, steps: Sequence[StepTimes]) -> Times:
    if len(steps) == 1:
        return steps[0].times
    return mean_times([step.times for step in steps], _peak(report))


def _peak(report: Report) -> float | None:
    if report.headline.mfu is None:
        return None
    found: float | None = report.metadata["peak_flops"].get(report.metadata["mfu_dtype"])
    return found


def _folded(steps: Sequence[StepTimes]) -> list[list[StepTimes]]:
    """Steps of a row each: those in a row that look the same. Of a table that is still too long also those near the
    typical step, and the shortest of the others, so that the longest remain."""
    found: list[list[StepTimes]] = []
    for step in steps:
        same = found and bool(found[-1][-1].note) == bool(step.note)
        if same and _row(found[-1][-1].times, _COLUMNS.values()) == _row(step.times, _COLUMNS.values()):
            found[-1].append(step)
        else:
            found.append([step])
    if len(found) <= _MOST_STEPS:
        return found
    times = sorted(step.times.time for step in steps if not step.note) or [0.0]
    typical = times[(len(times) - 1) // 2]
    near = [step for step in steps if not step.note and abs(step.times.time - typical) <= _NEAR * typical]
    usual = {step.number for step in near}
    others = sorted((step for step in steps if step.number not in usual), key=lambda step: -step.times.time)
    shown, rest = others[: _MOST_STEPS - 2], others[_MOST_STEPS - 2 :]
    rows = [*([step] for step in shown), near]
    for noted in (True, False):
        rows.append([step for step in rest if bool(step.note) == noted])
    return sorted((sorted(row, key=lambda s: s.number) for row in rows if row), key=lambda row: row[0].number)


def _numbers(steps: Sequence[StepTimes]) -> str:
    """``4-9``, ``2-9,12,… (15)``."""
    text = ranges(tuple(step.number for step in steps))
    return text if len(text) <= _NUMBERS else f"{cut(text, _NUMBERS)} ({len(steps)})"


def print_ranks(report: Report, console: Console) -> None:
    """A row for each rank, or for all that look the same."""
    columns = _columns(console)
    run = "" if report.headline.settled else " of the run, which is not settled"
    table = text_table(f"\nRanks (per steady step{run}; ranks that look the same are one row)", "rank", *columns)
    own = steps_of_mean(report)
    identical: dict[tuple[str, ...], list[int]] = {}
    for rank in report.ranks:
        steady = [step.times for step in rank.steps if step.number in own]
        times = mean_times(steady or [rank.gpu], _peak(report))
        identical.setdefault(tuple(_row(times, columns.values())), []).append(rank.rank)
    for cells, ranks in list(identical.items())[:_MOST_RANKS]:
        table.add_row(ranges(tuple(ranks)), *cells)
    if len(identical) > _MOST_RANKS:
        table.add_row(f"+{sum(map(len, list(identical.values())[_MOST_RANKS:]))}", *["" for _ in columns])
    console.print(table)

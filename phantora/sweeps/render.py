"""The answer in the terminal, at most 100 columns wide."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from phantora.sweeps.answer import SKIPPED, Answer, Row
from phantora.sweeps.plan import Plan
from phantora.sweeps.result import RAN, Measured
from phantora.sweeps.runner import Entry
from phantora.sweeps.space import text_of
from phantora.trace.analysis.summary import error_bar
from phantora.trace.analysis.units import duration, size

WIDTH = 100
MOST_ROWS = 30
MOST_PLANNED = 100


def render(found: Answer, console: Console) -> None:
    """The ranked table, what did not run, ties, the Pareto front, the best as command lines."""
    ran = [row for row in found.rows if row.measured]
    if ran:
        console.print(_table(found, ran[:MOST_ROWS]))
        if len(ran) > MOST_ROWS:
            console.print(f"The best {MOST_ROWS} of {len(ran)}; all are in the tables below {found.folder}.")
    _rest(found, console)
    if not ran:
        console.print("No point ran to its end.", style="bold")
        return
    for text in passed_over(found):
        _line(console, text)
    _report_ties(found, console)
    _report_front(found, ran, console)
    _report_folds(found, ran, console)
    _report_best(found, console)


def _table(found: Answer, rows: Sequence[Row]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    costs, joules = any(row.cost for row in rows), found.objective.by == "energy"
    unit = {"tokens": "tok/s", "samples": "smp/s", "steps": "steps/s"}[found.unit]
    roles = any(row.measured and row.measured.roles for row in rows)
    more = [*(("$/M",) if costs else ()), *((f"J/{found.unit.removesuffix('s')}",) if joules else ())]
    more += ["idle GPUs by role"] if roles else []
    columns = ("step", "±", "slower", unit, "MFU", "memory", "left", "exposed", *more)
    for name in ("", *found.axes, *columns):
        table.add_column(name, justify="right", no_wrap=True, overflow="ellipsis")
    for row in rows:
        measured = row.measured
        assert measured is not None and row.rate is not None
        point = row.entry.point
        mark = f"{row.rank}{'=' if row.tie or (row.rank == 1 and found.ties) else ''}{'*' if row.pareto else ''}"
        table.add_row(
            mark,
            *(text_of(point.values[axis]) if axis in point.values else "-" for axis in found.axes),
            duration(measured.step_time),
            bar_of(measured),
            f"{100 * row.behind:.1f}%" if row.rank != 1 else "",
            f"{row.rate:,.0f}" if row.rate >= 100 else f"{row.rate:.3g}",
            "-" if measured.mfu is None else f"{100 * measured.mfu:.1f}%",
            f"{measured.memory / 2**30:.1f}",
            f"{(measured.capacity - measured.memory) / 2**30:.1f}",
            f"{100 * measured.exposed:.1f}%",
            *((f"{row.cost:.4g}" if row.cost is not None else "-",) if costs else ()),
            *((f"{row.joules:.3g}" if row.joules is not None else "-",) if joules else ()),
            *((measured.roles or "-",) if roles else ()),
        )
    return table


def bar_of(measured: Measured) -> str:
    """The error bar of a step: ``3%``, ``-56% +50%`` where its sides differ; ``-`` without one."""
    if measured.error is None:
        return "-"
    above = measured.error if measured.error_above is None else measured.error_above
    return error_bar(measured.error, above).removeprefix("±").replace(" %", "%")


def _rest(found: Answer, console: Console) -> None:
    for row in found.rows:
        if row.measured is None and row.status != SKIPPED:
            _line(console, f"{row.entry.point.label(found.axes)}: {why(row)}")
    skipped: dict[str, list[Row]] = {}
    for row in found.rows:
        if row.status == SKIPPED:
            skipped.setdefault(row.entry.skipped, []).append(row)
    for reason, rows in skipped.items():
        labels = ", ".join(row.entry.point.label(found.axes) for row in rows[:3])
        more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
        _line(console, f"not run: {labels}{more}: {reason}")


def why(row: Row) -> str:
    """Why a point has no step time."""
    result = row.entry.result
    if result is None:
        return row.entry.skipped
    if result.measured is None:
        return f"failed: {result.error}"
    capacity = size(result.measured.capacity)
    if result.needs:
        return f"does not fit: needs {size(result.needs)} of {capacity}"
    return f"does not fit: needs more than {capacity}"


def passed_over(found: Answer) -> list[str]:
    """Sentences about points that are better than the best, but leave too little memory."""
    best, margin = found.best, f"{found.objective.margin:.0%}"
    if best is not None and not best.room:
        return [f"No point leaves {margin} of its memory (--margin): other shapes or a longer run may not fit."]
    return [
        f"{row.rank} is {-row.behind:.1%} better than 1 and passed over: it leaves {row.measured.left:.1%} of its "
        f"memory, less than {margin} (--margin)."
        for row in found.passed_over[:3]
        if row.measured is not None
    ]


def _report_ties(found: Answer, console: Console) -> None:
    if found.ties:
        which = ", ".join(str(row.rank) for row in found.ties)
        _line(console, f"Ties (=): 1 and {which} differ by less than the error bar: any of them may be the best.")
    surely = [row.rank for row in found.rows if row.surely and row.rank]
    if surely:
        which = _ranges(surely)
        _line(console, f"Slower than 1 by more than the error bars of both, on slower hosts too: {which}.")


def _ranges(numbers: Sequence[int]) -> str:
    """``3, 5 to 9``, of ascending numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _report_front(found: Answer, ran: Sequence[Row], console: Console) -> None:
    front = [str(row.rank) for row in ran if row.pareto]
    what = "speed, memory and cost" if any(row.cost for row in ran) else "speed and memory"
    _line(console, f"Pareto front (*) of {what}: {', '.join(front)}.")


def _report_folds(found: Answer, ran: Sequence[Row], console: Console) -> None:
    folded = [result for row in ran if (result := row.entry.result) is not None and result.fold]
    if folded:
        counts = sorted(result.processes or 0 for result in folded)
        few = str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
        _line(
            console,
            f"Folded: of {len(folded)} of {len(ran)} points {few} ranks ran as processes and stood for the "
            "others (docs/scale.md); --fold off runs all.",
        )
    refused: dict[str, list[int]] = {}
    for row in ran:
        if row.entry.result is not None and row.entry.result.refused and row.rank:
            refused.setdefault(row.entry.result.refused, []).append(row.rank)
    for why_not, ranks in refused.items():
        _line(console, f"{_ranges(ranks)} ran with more ranks as processes than asked: {why_not}")


def _report_best(found: Answer, console: Console) -> None:
    best = found.best
    assert best is not None and best.measured is not None and best.entry.result is not None
    _line(console, f"{found.title}.")
    if best.measured.holds_up:
        _line(console, f"It is held up by: {best.measured.holds_up}")
    for what, words in (("simulated", best.entry.result.command), ("on the cluster", best.entry.task.real_words())):
        console.print(f"The best, {what}:", markup=False, highlight=False)
        console.print(shlex.join(words), markup=False, highlight=False, soft_wrap=True)  # to be copied whole


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False)


def render_plan(plan: Plan, console: Console) -> None:
    """Prints the points that would run, those that cannot fit, and reasons for leaving combinations out."""
    axes = plan.axes
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("", *axes, "GPUs", "at least", "memory"):
        table.add_column(name, justify="right", no_wrap=True, overflow="ellipsis")
    for point in plan.points[:MOST_PLANNED]:
        memory = f"> {size(point.least_memory)}" if point.least_memory else "-"
        table.add_row(
            str(point.number),
            *(text_of(point.values[axis]) if axis in point.values else "-" for axis in axes),
            str(point.world),
            duration(point.least_time) if point.least_time else "-",
            memory if point.fits else f"{memory}: cannot fit",
        )
    console.print(table)
    if len(plan.points) > MOST_PLANNED:
        _line(console, f"The first {MOST_PLANNED} of {len(plan.points)}; --json has all.")
    rules: dict[str, list[str]] = {}
    for left in plan.left_out:
        label = " ".join(f"{name}={text_of(value)}" for name, value in left.values.items() if name in axes)
        rules.setdefault(left.rule, []).append(label)
    for rule, labels in rules.items():
        _line(console, f"left out by {rule}: {len(labels)}, such as {labels[0]}")
    runs = sum(point.fits for point in plan.points)
    _line(console, f"{runs} points would run; {len(plan.points) - runs} cannot fit; {len(plan.left_out)} are left out.")


def progress_line(entry: Entry) -> str:
    """Line for a point that is done."""
    result, label = entry.result, entry.point.label()
    if result is None:
        return f"{label}: not run: {entry.skipped}"
    if result.status != RAN or result.measured is None:
        return f"{label}: {why(Row(entry))}"
    measured = result.measured
    memory = f"{size(measured.memory)} of {size(measured.capacity)}"
    return f"{label}: {duration(measured.step_time)} a step, {memory} ({result.seconds:.0f} s)"

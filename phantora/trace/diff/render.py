"""A difference as text, at most 100 columns wide; its first line names the cause."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from phantora.trace.analysis.units import amount, cut, duration, short_name, size
from phantora.trace.diff.compare import SETTINGS, Change, Difference, WorkChange

_MOST = 8
_ALONE = 48  # characters of a name in a list
_SHARES = ("MFU", "HFU")
_OF_CLUSTER = ("world_size", "ranks_per_host")  # settings that follow from it
_WHOLE = 0.05  # of the change: an effect that differs from it by less is all of it
_SMALL = 0.01  # of the change: rows of less are added up
_SPREAD = 0.01  # of a step: a difference from which on it is said
_LEAST = 2e-4  # of a step: the same
_AGREES = 0.005  # relative: a real step that differs by less is the simulated one


def headline(d: Difference) -> str:
    """``Slower by 12.3 ms a step (+5.2%): another GPU: H100 -> A100``; of runs that failed this is of their steps."""
    failed = "; ".join(f"{name} failed: {line.split(';')[0]}" for name, line in d.failures.items())
    return f"{failed}. Of the steps before: {_of_steps(d)}" if failed else _of_steps(d)


def _of_steps(d: Difference) -> str:
    if d.equal:
        return "No difference."
    change, whole = d.step.change, d.step.a
    cause = _first(d)
    if d.reality:
        return _of_reality(d, cause)
    if d.recorded:
        more = f"{100 * abs(d.pace - 1):.1f}% {'fewer' if d.pace < 1 else 'more'}"
        return f"Neither trace has steps. In a second b runs {more} operators than a: {cause}"
    if d.same_work and not d.significant:
        same = f"No difference: {duration(d.step.a)} and {duration(d.step.b)} a step, the same work"
        if abs(change) > _SPREAD * whole:
            same += ", within the spread of the steps"
        return f"{same}; {cause}" if d.causes else f"{same}."
    if abs(change) < 1e-4 * whole:
        return f"Same step time ({duration(d.step.b)}): {cause}"
    share = f"{100 * change / whole:+.1f}%" if whole else "new"
    direction = "Slower" if change > 0 else "Faster"
    step = f"{direction} by {duration(abs(change))} a step ({share})"
    if d.significant or not whole:
        return f"{step}{_rate(d)}: {cause}"
    return f"{step}, not significant (±{100 * d.error / whole:.1f}%){_rate(d)}; largest change: {cause}"


def _first(d: Difference) -> str:
    """The first cause, with its effect where that is not the whole change."""
    if not d.causes:
        return "no cause found"
    cause, change = d.causes[0], d.step.change
    if d.recorded or not cause.effect or abs(cause.effect - change) <= _WHOLE * abs(change):
        return cause.text
    return f"{cause.text} ({_signed(cause.effect)})"


def _agrees(d: Difference) -> bool:
    return bool(d.reality) and abs(d.step.change) < _AGREES * d.step.a


def _of_reality(d: Difference, cause: str) -> str:
    """``The real run is slower by 1.2 ms a step (+5.2%) than the simulation: host gaps: ...``; b is its subject."""
    share = f"{100 * d.step.change / d.step.a:+.1f}%" if d.step.a else "new"
    subject, other = ("real run", "simulation")[:: 1 if d.reality == "b" else -1]
    if _agrees(d):
        return f"The {subject} agrees with the {other}: {duration(d.step.b)} a step ({share})"
    slower = "slower" if d.step.change > 0 else "faster"
    text = f"{slower} by {duration(abs(d.step.change))} a step ({share})"
    if d.inconclusive:
        return f"Inconclusive: the {subject} is {text}, within the simulation's error bar; largest part: {cause}"
    return f"The {subject} is {text} than the {other}: {cause}"


def _rate(d: Difference) -> str:
    """Throughput, where a step's time does not say it: another batch."""
    rate = next((r for r in d.rates if r.name.endswith("/s")), None)
    if rate is None or abs(rate.b / rate.a * d.step.b / d.step.a - 1) < 0.002:
        return ""
    return f", {100 * (rate.b / rate.a - 1):+.1f}% {rate.name}"


def render(d: Difference, console: Console) -> None:
    """Prints the difference as text."""
    console.print(headline(d), highlight=False, markup=False, style="bold", soft_wrap=True)
    if d.equal or (d.same_work and not d.significant and not d.causes):
        return
    what = "recorded" if d.recorded else "a step"
    console.print(f"a {d.path_a}: {duration(d.step.a)} {what}", highlight=False, markup=False)
    console.print(f"b {d.path_b}: {duration(d.step.b)} {what}", highlight=False, markup=False)
    for rate in d.rates:
        if rate.name in _SHARES:
            values = f"{100 * rate.a:.1f}% -> {100 * rate.b:.1f}% ({100 * rate.change:+.1f} points)"
        else:
            values = f"{amount(rate.a)} -> {amount(rate.b)} ({100 * (rate.b / rate.a - 1):+.1f}%)"
        console.print(f"- {rate.name} {values}", highlight=False, markup=False)
    least = max(_SMALL * abs(d.step.change), _LEAST * d.step.a)
    agrees = _agrees(d)
    for cause in d.causes[0 if agrees else 1 :]:
        if agrees and abs(cause.effect) < least:
            continue
        effect = f" ({_signed(cause.effect)})" if cause.effect else ""
        console.print(f"- also {cause.text}{effect}", highlight=False, markup=False)
    machine = any(name == "cluster" for name, _, _ in d.settings)
    for name, a, b in d.settings:
        if name in SETTINGS and not (machine and name in _OF_CLUSTER):
            show = size if name.endswith("_bytes") else str
            console.print(f"- {name.removesuffix('_bytes')}: {show(a)} -> {show(b)}", highlight=False, markup=False)
    _changes(
        "Where the recorded time changed" if d.recorded else "Where the step's time changed", d.times, least, console
    )
    _changes("Device time by class", d.classes, least, console)
    _work("Operators", d.operators, least, console)
    _work("Collectives", d.collectives, least, console)
    _changes("Exposed communication", d.exposure, least, console)
    _ranks(d.ranks, least, console)
    held = _SMALL * max((change.a for change in d.memory if change.name == "allocated"), default=0.0)
    _memory("Memory at the peak", d.memory, held, console)
    _memory("Reserved memory", [peak for peak in d.peaks if peak.name == "reserved" and peak.change], held, console)
    for title, names in (("Only in b", d.added), ("Only in a", d.removed)):
        if names:
            more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
            shown = ", ".join(short_name(name, _ALONE) for name in names[:_MOST])
            console.print(f"\n[bold]{title}[/bold]: {escape(shown)}{more}", highlight=False)


def _table(title: str, *columns: str) -> Table:
    table = Table(
        title=f"\n{title}", title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=i > 0, overflow="fold")
    return table


def _parted(changes: Sequence[Change], least: float) -> tuple[list[Change], list[Change]]:
    """Rows that are shown, and those of smaller changes."""
    shown = [change for change in changes if abs(change.change) >= least][:_MOST]
    return shown, [change for change in changes if change not in shown]


def _sum(name: str, changes: Sequence[Change]) -> Change:
    a, b = sum(c.a for c in changes), sum(c.b for c in changes)
    return changes[0] if len(changes) == 1 else Change(name.format(len(changes)), a, b)


def _changes(title: str, changes: Sequence[Change], least: float, console: Console) -> None:
    """Times that add up. Those below `least` are one row."""
    shown, small = _parted(changes, least)
    others = _sum("{} smaller", small)
    _print(title, [*shown, *([others] if abs(others.change) >= least else [])], duration, console)


def _ranks(changes: Sequence[Change], least: float, console: Console) -> None:
    shown, small = _parted(sorted(changes, key=lambda c: -abs(c.change)), least)
    if shown and small:
        others = _sum("mean of {} more", small)
        shown = [*shown, Change(others.name, others.a / len(small), others.b / len(small))]
    _print("Compute by rank", shown, duration, console)


def _memory(title: str, changes: Sequence[Change], least: float, console: Console) -> None:
    _print(title, _parted(changes, least)[0], size, console)


def _print(title: str, rows: Sequence[Change], show: Callable[[float], str], console: Console) -> None:
    if not rows:
        return
    table = _table(title, "", "a", "b", "change")
    for c in rows:
        sign = "+" if c.change > 0 else "-"
        table.add_row(cut(c.name, 50), show(c.a), show(c.b), sign + show(abs(c.change)))
    console.print(table)


def _work(title: str, changes: Sequence[WorkChange], least: float, console: Console) -> None:
    rows = [c for c in changes if abs(c.change) >= least]
    if not rows:
        return
    table = _table(title, "", "calls a", "calls b", "change", "by count", "by shape", "by duration")
    for c in rows[:_MOST]:
        table.add_row(
            cut(c.name, 32),
            f"{c.a.count:g}"[:7],
            f"{c.b.count:g}"[:7],
            _signed(c.change),
            _signed(c.by_count),
            _signed(c.by_shape),
            _signed(c.by_duration),
        )
    more = rows[_MOST:]
    if more:
        parts = ([getattr(c, part) for c in more] for part in ("change", "by_count", "by_shape", "by_duration"))
        table.add_row(f"{len(more)} more", "", "", *(_signed(sum(part)) for part in parts))
    console.print(table)


def _signed(ns: float) -> str:
    return ("+" if ns > 0 else "-" if ns < 0 else "") + duration(abs(ns))

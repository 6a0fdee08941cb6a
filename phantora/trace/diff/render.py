"""A difference as text, at most 100 columns wide; its first line names the cause."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from phantora.trace.analysis.units import amount, cut, duration, short_name, size
from phantora.trace.diff.compare import SETTINGS, Change, Difference, WorkChange

_MOST = 8
_ALONE = 48  # characters of a name in a list
_WHOLE = 0.05  # of the change: an effect that differs from it by less is all of it
_AGREES = 0.005  # relative: a real step that differs by less is the simulated one


def headline(d: Difference) -> str:
    """``Slower by 12.3 ms a step (+5.2%): another GPU: H100 -> A100``."""
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
    if not cause.effect or abs(cause.effect - change) <= _WHOLE * abs(change):
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
        values = f"{_quantity(rate, rate.a)} -> {_quantity(rate, rate.b)}"
        console.print(f"- {rate.name} {values} ({_relative(rate)})", highlight=False, markup=False)
    for cause in d.causes[0 if _agrees(d) else 1 :]:
        effect = f" ({_signed(cause.effect)})" if cause.effect else ""
        console.print(f"- also {cause.text}{effect}", highlight=False, markup=False)
    for name, a, b in d.settings:
        if name in SETTINGS:
            show = size if name.endswith("_bytes") else str
            console.print(f"- {name.removesuffix('_bytes')}: {show(a)} -> {show(b)}", highlight=False, markup=False)
    _changes("Where the recorded time changed" if d.recorded else "Where the step's time changed", d.times, console)
    _changes("Device time by class", d.classes, console)
    _work("Operators", d.operators, console)
    _work("Collectives", d.collectives, console)
    _changes("Exposed communication", d.exposure, console)
    _changes("Compute by rank", sorted(d.ranks, key=lambda c: -abs(c.change)), console)
    _changes("Memory at the peak", d.memory, console, memory=True)
    reserved = [peak for peak in d.peaks if peak.name == "reserved" and peak.change]
    _changes("Reserved memory", reserved, console, memory=True)
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


def _changes(title: str, changes: Sequence[Change], console: Console, memory: bool = False) -> None:
    if not changes:
        return
    show = size if memory else duration
    table = _table(title, "", "a", "b", "change")
    for c in changes[:_MOST]:
        sign = "+" if c.change > 0 else "-"
        table.add_row(cut(c.name, 50), show(c.a), show(c.b), sign + show(abs(c.change)))
    console.print(table)


def _work(title: str, changes: Sequence[WorkChange], console: Console) -> None:
    if not changes:
        return
    table = _table(title, "", "calls a", "calls b", "change", "by count", "by shape", "by duration")
    for c in changes[:_MOST]:
        table.add_row(
            cut(c.name, 32),
            f"{c.a.count:g}"[:7],
            f"{c.b.count:g}"[:7],
            _signed(c.change),
            _signed(c.by_count),
            _signed(c.by_shape),
            _signed(c.by_duration),
        )
    console.print(table)


def _quantity(rate: Change, value: float) -> str:
    return f"{100 * value:.1f}%" if rate.name == "MFU" else amount(value)


def _relative(change: Change) -> str:
    return f"{100 * (change.b / change.a - 1):+.1f}%" if change.a else "new"


def _signed(ns: float) -> str:
    return ("+" if ns > 0 else "-" if ns < 0 else "") + duration(abs(ns))

"""A run in a notebook: the verdict, a step's timeline, memory and the roofline, as HTML without scripts or files."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

from phantora.trace.analysis import summary
from phantora.trace.analysis.report import MemoryReport, Report, StepTimes, Work
from phantora.trace.analysis.units import duration, rate, short_name, size
from phantora.trace.reader import Log
from phantora.trace.schema import DEVICE_KINDS
from phantora.view.palette import color

_WIDTH, _HEIGHT, _ROW = 720, 120, 14
_STREAMS, _LABEL = 8, 56  # that are drawn, and the width of their names
_PIXEL = 1.0  # shorter kernels of one class are drawn as one
_POINTS = 40  # operators of the roofline
_HEAD = "margin:8px 0 2px;font-weight:bold"


def page(log: Log, report: Report) -> str:
    """The run of `log`, whose report has details."""
    lines = "".join(
        f'<tr style="text-align:left"><th style="white-space:nowrap">{word}</th><td>{html.escape(text)}</td></tr>'
        for word, text in summary.lines(report)
    )
    title = f"<b>{html.escape(log.path)}</b> {html.escape(str(report.metadata['cluster']))}"
    parts = [f"{title}<table>{lines}</table>", _causes(report), _timeline(log, report)]
    if report.details is not None:
        fullest = max(report.details.memory, key=lambda one: one.peak_allocated, default=None)
        parts += [_memory(fullest) if fullest is not None else "", _roofline(report, report.details.operators)]
    return f'<div style="max-width:{_WIDTH}px;font-size:13px">{"".join(parts)}</div>'


def _titled(title: str, content: str) -> str:
    return f'<div style="{_HEAD}">{html.escape(title)}</div>{content}'


def _svg(height: int, shapes: Iterable[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="100%" xmlns="http://www.w3.org/2000/svg" '
        f'font-size="10" fill="currentColor">{"".join(shapes)}</svg>'
    )


def _box(x: float, y: float, size: tuple[float, float], fill: str, title: str) -> str:
    width, height = size
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.3):.1f}" height="{height:.1f}" fill="{fill}">'
        f"<title>{html.escape(title)}</title></rect>"
    )


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}">{html.escape(text)}</text>'


def _causes(report: Report) -> str:
    """Where a steady step's time goes, as a bar."""
    steady = report.steady
    whole = steady.time or 1.0
    parts = {"compute": steady.compute, **{name: time for name, time in steady.stalls.items() if time}}
    bars = "".join(
        f'<span title="{html.escape(name)}: {duration(time)}" style="display:inline-block;height:14px;'
        f'background:{color(name)};width:{100 * time / whole:.2f}%"></span>'
        for name, time in parts.items()
    )
    swatch = '<span style="color:{}">&#9632;</span> '
    told = ", ".join(
        f"{swatch.format(color(name))}{html.escape(name)} {100 * time / whole:.1f}%" for name, time in parts.items()
    )
    return f'<div style="width:100%;font-size:0">{bars}</div><small>{told}</small>'


def _typical(report: Report) -> StepTimes | None:
    """The step of the first rank that is most like the mean."""
    steps = report.ranks[0].steps if report.ranks else []
    steady = [step for step in steps if not step.note] or steps
    return min(steady, key=lambda step: abs(step.times.time - report.steady.time), default=None)


def _timeline(log: Log, report: Report) -> str:
    """The streams of the first rank in a step."""
    step = _typical(report)
    if step is None or step.end <= step.start:
        return ""
    rank, scale = report.ranks[0].rank, (_WIDTH - _LABEL) / (step.end - step.start)
    classes, kinds, names = log.words("cls"), DEVICE_KINDS, log.words("name")
    rows: dict[int, list[tuple[int, int, str, str]]] = {}
    columns = ("start", "end", "stream", "cls", "name")
    for kind in kinds:
        for batch in log.batches(columns, kinds=(kind,), ranks=[rank]):
            for start, end, stream, cls, name in zip(*(batch[c].tolist() for c in columns), strict=True):
                if end > step.start and start < step.end:
                    of = classes[cls] if cls >= 0 else "copy" if kind.startswith("mem") else "communication"
                    rows.setdefault(stream, []).append((start, end, of, names[name]))
    busiest = sorted(rows, key=lambda stream: -sum(end - start for start, end, *_ in rows[stream]))[:_STREAMS]
    shapes = []
    for y, stream in enumerate(sorted(busiest)):
        for start, end, of, title in _merged(sorted(rows[stream]), _PIXEL / scale):
            left = _LABEL + (max(start, step.start) - step.start) * scale
            width = (min(end, step.end) - max(start, step.start)) * scale
            shapes.append(_box(left, y * _ROW, (width, _ROW - 2), color(of), f"{title}, {duration(end - start)}"))
        shapes.append(_text(2, y * _ROW + _ROW - 4, f"stream {stream}"))
    title = f"Step {step.number} of rank {rank}: {duration(step.end - step.start)}"
    return _titled(title, _svg(len(busiest) * _ROW, shapes)) if shapes else ""


def _merged(rows: Sequence[tuple[int, int, str, str]], least: float) -> list[tuple[int, int, str, str]]:
    """Neighbours of one class as one, where they or what lies between them are not seen."""
    found: list[tuple[int, int, str, str]] = []
    for start, end, of, name in rows:
        title = short_name(name, 60)
        if found and found[-1][2] == of and start - found[-1][1] < least and end - start < least:
            begin, until, _, first = found[-1]
            found[-1] = begin, max(until, end), of, first if first.endswith("...") else f"{first} ..."
        else:
            found.append((start, end, of, title))
    return found


def _memory(memory: MemoryReport) -> str:
    """The fullest rank's memory over the run, by what holds it."""
    levels = memory.timeline
    if len(levels) < 2:
        return ""
    begin, end = levels[0][0], levels[-1][0]
    top = max(reserved for _, _, reserved in levels) or 1

    def at(time: int, level: float) -> str:
        return f"{_WIDTH * (time - begin) / max(1, end - begin):.1f},{_HEIGHT * (1 - level / top):.1f}"

    shapes, below = [], [0] * len(levels)
    times = [time for time, _, _ in levels]
    for name, own in memory.timeline_by_category.items():
        above = [base + value for base, value in zip(below, own, strict=True)]
        around = [at(time, level) for time, level in zip(times, above, strict=True)]
        around += [at(time, level) for time, level in zip(reversed(times), reversed(below), strict=True)]
        shapes.append(
            f'<polygon points="{" ".join(around)}" fill="{color(name)}"><title>{html.escape(name)}</title></polygon>'
        )
        below = above
    line = " ".join(at(time, reserved) for time, _, reserved in levels)
    shapes.append(f'<polyline points="{line}" fill="none" stroke="currentColor"><title>reserved</title></polyline>')
    held = ", ".join(f"{name} {size(count)}" for name, count in memory.by_category.items() if count > top / 100)
    title = f"Memory of rank {memory.rank}: peak {size(memory.peak_allocated)} of {size(memory.capacity)} ({held})"
    return _titled(title, _svg(_HEIGHT, shapes))


def _roofline(report: Report, operators: Sequence[Work]) -> str:
    """The operators that take most: flops for a byte, and flops a second, below the GPU's limits."""
    peak = report.metadata["peak_flops"].get(report.metadata["mfu_dtype"])
    bandwidth = report.metadata["extra"].get("memory_bandwidth")
    known = [one for one in operators if one.flops and one.bytes and one.time][:_POINTS]
    if not peak or not bandwidth or not known:
        return ""
    points = [(one.flops / one.bytes, one.flops / one.time * 1e9, one) for one in known]
    ridge = peak / bandwidth
    low = math.log10(min(ridge, *(x for x, _, _ in points)) / 2)
    high = math.log10(max(ridge, *(x for x, _, _ in points)) * 4)
    bottom, top = math.log10(min(y for _, y, _ in points) / 2), math.log10(1.5 * peak)

    def at(x: float, y: float) -> tuple[float, float]:
        return _WIDTH * (math.log10(x) - low) / (high - low), _HEIGHT * (top - math.log10(y)) / (top - bottom)

    start = max(10**low, 10**bottom / bandwidth)
    corners = [at(*corner) for corner in ((start, start * bandwidth), (ridge, peak), (10**high, peak))]
    roof = " ".join(f"{left:.1f},{above:.1f}" for left, above in corners)
    shapes = [f'<polyline points="{roof}" fill="none" stroke="currentColor"/>']
    longest = max(one.time for one in known)
    for x, y, one in points:
        left, above = at(x, y)
        told = f"{one.name}: {y / 1e12:.1f} TFLOP/s, {rate(one.bytes / one.time * 1e9)}, {100 * one.share:.1f}%"
        shapes.append(
            f'<circle cx="{left:.1f}" cy="{above:.1f}" r="{2 + 6 * math.sqrt(one.time / longest):.1f}" '
            f'fill="{color(one.cls)}" fill-opacity="0.7"><title>{html.escape(told)}</title></circle>'
        )
    title = f"Roofline: {peak / 1e12:.0f} TFLOP/s, {rate(bandwidth)}; flops for a byte to the right, areas by time"
    return _titled(title, _svg(_HEIGHT, shapes))

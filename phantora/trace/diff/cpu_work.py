"""Operators on tensors of the CPU that hold up the GPUs of one run more than those of another."""

from __future__ import annotations

from phantora.trace.analysis.host_waits import CPU
from phantora.trace.analysis.loader import LOADER
from phantora.trace.analysis.report import Report
from phantora.trace.analysis.units import duration
from phantora.trace.diff.compare import Cause, Side


def with_cpu_work(a: Side, b: Side, host: list[Cause]) -> tuple[list[Cause], list[Cause]]:
    """The cause "cpu" if these waits changed, and `host` without its part."""
    x, y = _waits(a.report), _waits(b.report)
    change = sum(y.values()) - sum(x.values())
    if not change or not host:
        return [], host
    less = change < 0
    lines, others = (x, y) if less else (y, x)
    line = max(lines, key=lambda name: lines[name] - others.get(name, 0.0))
    place = line.removeprefix(CPU)  # " at train.py:6"
    text = f"work on the CPU: GPUs wait {duration(abs(change))} {'less' if less else 'more'} a step for operators"
    first, *rest = host
    cpu = Cause("cpu", f"{text}{', most' if len(lines) > 1 else ''}{place}", change)
    return [cpu], [_less(first, change), *rest]


def with_loader(a: Side, b: Side, host: list[Cause]) -> tuple[list[Cause], list[Cause]]:
    """The cause "data" if the waits for torch's DataLoader changed, and `host` without its part."""
    x, y = (sum(wait.time for wait in side.report.host_waits if wait.name == LOADER) for side in (a, b))
    if x == y or not host:
        return [], host
    text = f"data loading: GPUs wait {duration(abs(y - x))} {'less' if y < x else 'more'} a step for the DataLoader"
    first, *rest = host
    return [Cause("data", text, y - x)], [_less(first, y - x), *rest]


def _less(host: Cause, effect: float) -> Cause:
    left = host.effect - effect
    text = f"host: GPUs wait {duration(abs(left))} {'more' if left > 0 else 'less'} a step for launches"
    return Cause(host.kind, text, left)


def _waits(report: Report) -> dict[str, float]:
    """ns a step by line."""
    return {wait.name: wait.time for wait in report.host_waits if wait.name.startswith(CPU)}

"""Differences around the work of two runs: environment variables and the allocator's memory."""

from __future__ import annotations

from collections.abc import Iterator

from phantora.trace.analysis.units import size
from phantora.trace.diff.compare import Cause, Difference

_MOVED = 0.05  # of the reserved memory: a smaller change is not named
_LEAST = 256 << 20  # bytes: the same
_TAKEN = ("network", "host", "kernels")
"""Kinds of causes of the same work: a variable that differs explains them."""


def memory_causes(d: Difference) -> Iterator[Cause]:
    """Retries and reserved memory. No time is attributed to them."""
    found, retries = {peak.name: peak for peak in d.peaks}, d.retries
    if not found:
        return
    reserved, allocated = found["reserved"], found["allocated"]
    if retries is not None and retries.change:
        counts = f"{retries.a:.0f} -> {retries.b:.0f}"
        yield Cause("retries", f"allocator retries {counts} (it freed its cache to meet an allocation)", 0.0)
    if abs(reserved.change) > max(_LEAST, _MOVED * max(reserved.a, reserved.b)):
        text = f"reserved memory {size(int(reserved.a))} -> {size(int(reserved.b))}"
        more = f" (allocated {size(int(allocated.a))} -> {size(int(allocated.b))})"
        yield Cause("memory", text + more, 0.0)


def with_surroundings(found: list[Cause], d: Difference) -> list[Cause]:
    """`found` with variables and memory. Variables are named first where no other work explains the difference."""
    memory = list(memory_causes(d))
    if memory and [cause.kind for cause in found] == ["other"]:
        found = []
    found = [*found, *memory]
    if not d.variables:
        return found
    text = ", ".join(f"{name}: {x} -> {y}" for name, x, y in d.variables)
    same_work = all(cause.kind in (*_TAKEN, "retries", "memory", "other") for cause in found)
    if not same_work:
        return [*found, Cause("environment", text, 0.0)]
    rest = [cause for cause in found if cause.kind in ("retries", "memory") or (d.significant and cause.kind in _TAKEN)]
    return [Cause("environment", text, sum(cause.effect for cause in rest)), *rest]

"""Durations of an operator's kernels from the time of all of them together."""

from __future__ import annotations


def scale_to(durations: tuple[int, ...], ns: float) -> tuple[int, ...]:
    """`durations` (ns) in the same proportions with the sum `ns`, each at least 1 ns."""
    factor = ns / max(1, sum(durations))
    return tuple(max(1, round(duration * factor)) for duration in durations)

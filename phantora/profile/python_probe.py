"""Work of Python alone, and its time on this machine: the row ``python`` of ``host_probe.py``, which needs torch."""

from __future__ import annotations

import statistics
import time

ROUNDS, CALLS = 7, 60


class Point:
    """An object for :func:`python` to work on."""

    def __init__(self, x: int) -> None:
        self.x, self.names = x, {"a": x, "b": 2}

    def moved(self, by: int) -> Point:
        """The point `by` further on."""
        return Point(self.x + by if self.names["a"] else 0)


def python() -> None:
    """Work of Python alone."""
    points = [Point(i) for i in range(20)]
    sorted(points, key=lambda p: -p.x)
    " ".join(f"{p.moved(i).x:d}" for i, p in enumerate(points))


def python_ns() -> float:
    """CPU time of a call here, ns."""
    times = []
    for _ in range(ROUNDS):
        began = time.thread_time_ns()
        for _ in range(CALLS):
            python()
        times.append((time.thread_time_ns() - began) / CALLS)
    return statistics.median(times)

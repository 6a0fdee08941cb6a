"""Work of Python alone. Its time is the row ``python`` of ``profile/host_probe.py`` and of a host's ``probe_ns``."""

from __future__ import annotations


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

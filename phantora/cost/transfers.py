"""Copies and memsets: times read off the measured curve of their kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from math import log2

import numpy as np

from phantora.cost import copies
from phantora.cost.table import Table
from phantora.cost.types import Price

CURVE_ERROR = 0.11
"""Relative, between two measured sizes: 90th percentile with one size hidden (validation/compare/leave_out.py)."""
REPEATED_ERROR = 0.02
"""Relative, of a measured size: spread of repetitions."""


def transfer_price(tables: Iterable[Table], base: Price, name: str, first: tuple[str, ...], size: int) -> Price:
    """The price of `size` bytes in the first table with a curve of the kind; `base` without one.

    `name` is ``copy``, with the kind of copy as `first` argument, or ``memset``.
    """
    for table in tables:
        points = curve(table, name, first, copies.in_pages(size))
        if len(points) < 2 or size <= 0:
            continue
        measured = size in points
        return replace(
            base,
            durations=(max(1, round(read_curve(points, size))),),
            provenance="measured" if measured else "interpolated",
            error=REPEATED_ERROR if measured else CURVE_ERROR,
        )
    return base


@lru_cache(maxsize=64)
def curve(table: Table, name: str, first: tuple[str, ...], in_pages: bool) -> dict[int, float]:
    """Measured ns by bytes, ascending, of copies of one kind or of memsets.

    Copies inside a GPU have two curves: of sizes that are `in_pages`, and of others. The caller does not change them.
    """
    found = {
        int(entry.parsed.args[-1]): float(sum(kernel.cold for kernel in entry.kernels))
        for entry in table.of_operator(name)
        if entry.parsed.name.startswith("phantora::") and entry.parsed.args[:-1] == first
    }
    if first == ("d2d",):
        found = {s: ns for s, ns in found.items() if s <= copies.SMALL or copies.in_pages(s) == in_pages}
    return dict(sorted(found.items()))


def read_curve(points: Mapping[int, float], size: int) -> float:
    """ns of `size` bytes: linear between logarithms, and the rate of the largest size beyond it."""
    at, ns = np.log2(np.maximum(1, list(points))), np.log(list(points.values()))
    beyond = max(1.0, size / 2.0 ** at[-1])
    return float(beyond * np.exp(np.interp(log2(size), at, ns)))

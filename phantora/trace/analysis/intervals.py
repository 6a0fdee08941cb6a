"""Lengths of unions of intervals, over all ranks at once and a log batch at a time.

The log is ordered by end. Read backwards, a sweep needs to remember one number per rank: the
earliest start so far. What an interval adds to the union is its part before that number; these
parts are disjoint, so they can be cut at step boundaries and summed. Nothing else is kept, and
no interval is missed however long it is.

All ranks share one axis: rank r's time t lies at ``r * span + t``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class Axis:
    """The common time axis of `ranks` (positions, not rank numbers) and its cuts."""

    def __init__(self, ranks: int, span: int, cuts: list[tuple[int, int]]) -> None:
        """`cuts` are (rank position, time) pairs; every rank's own beginning is cut as well."""
        self.ranks = ranks
        self.span = span
        own = [rank * span for rank in range(ranks + 1)]
        self.edges: Ints = np.unique(np.array(own + [rank * span + time for rank, time in cuts], np.int64))

    @property
    def segments(self) -> int:
        """Segment i holds what lies between edges i and i + 1."""
        return len(self.edges) - 1

    def at(self, rank: Ints, time: Ints) -> Ints:
        return rank * self.span + time

    def segment(self, position: Ints) -> Ints:
        """The segment that a position falls into; an edge belongs to the segment it opens."""
        found = np.searchsorted(self.edges, position, "right") - 1
        return np.clip(found, 0, self.segments - 1).astype(np.int64)

    def segment_between(self, rank: int, start: int, end: int) -> slice:
        """The segments from one cut to another."""
        first, last = np.searchsorted(self.edges, [rank * self.span + start, rank * self.span + end])
        return slice(int(first), int(last))

    def measure(self, start: Ints, end: Ints) -> Ints:
        """Length of disjoint intervals in each segment."""
        length = np.zeros(self.segments, np.int64)
        first = self.segment(start)
        last = np.searchsorted(self.edges, end, "left") - 1
        inside = first >= last
        np.add.at(length, first[inside], (end - start)[inside])
        for i in np.flatnonzero(~inside):  # few: disjoint, so an edge cuts at most one
            a, b = int(first[i]), int(last[i])
            bounds = np.concatenate([start[i : i + 1], self.edges[a + 1 : b + 1], end[i : i + 1]])
            length[a : b + 1] += np.diff(bounds)
        return length


class Union:
    """Length of a union of intervals per segment of an axis, fed backwards."""

    def __init__(self, axis: Axis) -> None:
        self._axis = axis
        self._earliest: Ints = (np.arange(axis.ranks, dtype=np.int64) + 1) * axis.span
        self.length: Ints = np.zeros(axis.segments, np.int64)

    def add_before(self, rank: Ints, start: Ints, end: Ints) -> None:
        """Adds intervals of which none ends after one added before. Positions on the axis, sorted
        by (rank, end)."""
        if not len(start):
            return
        # Earliest start among later rows of the batch; rows of other ranks lie beyond and don't matter.
        running = np.minimum.accumulate(start[::-1])[::-1]
        limit = np.append(running[1:], np.iinfo(np.int64).max)
        np.minimum(limit, self._earliest[rank], out=limit)
        stop = np.minimum(end, limit)
        adds = stop > start
        self.length += self._axis.measure(start[adds], stop[adds])
        np.minimum.at(self._earliest, rank, start)

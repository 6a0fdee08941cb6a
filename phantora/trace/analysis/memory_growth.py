"""Memory that grows from iteration to iteration, and what keeps it.

A program that keeps outputs, or losses with their graphs, has more allocated after each iteration, until the GPU is
full. The rank's own objects tell what keeps it (``phantora/rank/patches/keepers.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from phantora.trace.analysis.memory_rows import MemoryRows, blocks_of
from phantora.trace.analysis.report import Growth
from phantora.wire.shared import KEPT, KEPT_LEAST

_IN_A_ROW = 3  # iterations in a row that take more
_LAST = 8  # that are looked at
_EVEN = 4.0  # times the least growth: the most
_MOST_OF_IT = 0.3  # of what has grown: so much a container keeps itself; else the graphs of its tensors do


def growth(rank: int, rows: MemoryRows, ends: Sequence[int], words: Sequence[str], capacity: int) -> Growth | None:
    """The growth over the last iterations, which end on the host at `ends` (ns); None where it does not last. A run
    without ends has one where each large block was made that a container keeps."""
    if not len(ends):
        ends = _kept_since(rows, words)
    if not len(rows.time) or len(ends) <= _IN_A_ROW:
        return None
    at = np.searchsorted(rows.time, np.array(sorted(ends), np.int64), "right") - 1
    levels = rows.allocated[np.maximum(at, 0)]
    grown = np.diff(levels)[-_LAST:]
    while len(grown) > _IN_A_ROW and grown[0] > _EVEN * np.median(grown):
        grown = grown[1:]  # state of the optimizer, buckets
    if len(grown) < _IN_A_ROW or grown.min() < KEPT_LEAST or grown.max() > _EVEN * grown.min():
        return None
    each = int(np.median(grown))
    full = len(ends) + max(0, capacity - int(rows.reserved.max())) // each + 1
    place = _keeper(rows, words, each * len(grown))
    return Growth(rank, each, place or _made_at(rows, int(at[-len(grown) - 1]), words), bool(place), int(full))


def _kept_since(rows: MemoryRows, words: Sequence[str]) -> list[int]:
    """Times (ns) at which the large blocks were made that containers keep: in a run without steps, one an iteration."""
    blocks = blocks_of(rows)
    kept = np.array([word.startswith(KEPT) for word in words] + [False])[blocks.use] & (blocks.size >= KEPT_LEAST)
    return sorted(set(blocks.start[kept].tolist()))


def _keeper(rows: MemoryRows, words: Sequence[str], total: int) -> str:
    """What keeps the most of `total` bytes, or the first named: whose graphs are largest."""
    blocks = blocks_of(rows)
    size: dict[str, int] = {}
    for use in rows.use[rows.use >= 0].tolist():
        if words[use].startswith(KEPT):
            size.setdefault(words[use], int(blocks.size[blocks.use == use].sum()))
    if not size:
        return ""
    most = max(size, key=lambda name: size[name])
    return (most if size[most] >= _MOST_OF_IT * total else next(iter(size))).removeprefix(KEPT)


def _made_at(rows: MemoryRows, since: int, words: Sequence[str]) -> str:
    """The place that made most of the blocks since a row that are still there at the end; "" if none is known."""
    blocks = blocks_of(rows)
    alive = np.flatnonzero((blocks.freed < 0) & (blocks.row >= since))
    sites = np.flatnonzero(rows.site >= 0)
    if not len(alive) or not len(sites):
        return ""
    following = np.searchsorted(sites, blocks.row[alive])
    alive, following = alive[following < len(sites)], following[following < len(sites)]
    sums = np.bincount(rows.site[sites[following]], blocks.size[alive], len(words))
    return words[int(sums.argmax())] if sums.any() else ""

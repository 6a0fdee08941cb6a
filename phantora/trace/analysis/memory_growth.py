"""Memory that grows from iteration to iteration, and what keeps it.

A program that keeps outputs, or losses with their graphs, has more allocated after each iteration, until the GPU is
full. The rank's own objects tell what keeps it (``phantora/rank/patches/keepers.py``).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from phantora.trace.analysis.memory_rows import LOCATED, Blocks, Ints, MemoryRows, blocks_of, end_of_work, places_of
from phantora.trace.analysis.report import Growth
from phantora.wire.shared import GRAPH, KEPT, KEPT_LEAST

_IN_A_ROW = 3  # iterations in a row that take more
_LAST = 8  # that are looked at
_EVEN = 4.0  # times the least growth: the most
_EQUAL = 1.25  # the same, where only every second iteration or fewer take more
_MOST_OF_IT = 0.3  # of what has grown: so much a container keeps itself; else the graphs of its tensors do
_LASTS = 0.5  # of what has grown: so much must be older than the last iteration
_ALL_LARGER = 2.0  # times what stays at an iteration's end: by so much more is allocated where inputs get longer
_DECIDES = 0.2  # of what is allocated: so much must have grown where memory runs out
_REPEATS = 0.8  # of the numbers of allocations between blocks
_BOUNDED = re.compile(r", at most (\d+)\)")  # of a place (``keepers.py``)
_GOES_ON = 2.0  # times the allocations of the longest iteration: a run that ends in one has no more after the last


def growth(rank: int, rows: MemoryRows, ends: Sequence[int], words: Sequence[str], capacity: int) -> Growth | None:
    """The growth over the last iterations, which end on the host at `ends` (ns); None where it does not last, or is
    not why memory ran out. A run without ends has one where each large block was made that a container keeps."""
    if not len(rows.time):
        return None
    if not len(ends):
        blocks = blocks_of(rows)
        larger = _larger(rank, rows, blocks, words, capacity)
        if larger is not None:
            return larger
        ends = _kept_since(rows, blocks, words)
    if len(ends) <= _IN_A_ROW:
        return None
    at = np.searchsorted(rows.time, np.array(sorted(ends), np.int64), "right") - 1
    levels = rows.allocated[np.maximum(at, 0)]
    every, grown = _rise(levels)
    if not len(grown):
        return None
    each, counted = int(np.median(grown)), len(grown) + every - 1
    if rows.oom.any() and each * len(ends) < _DECIDES * every * rows.allocated.max():
        return None
    if _longer_inputs(rows, at[-counted - 1 :], every):
        return None
    full = len(ends) + every * (max(0, capacity - int(rows.reserved.max())) // each) + 1
    place = _keeper(rows, words, each * counted // every)
    made = "" if place else _made_at(rows, int(at[-counted - 1]), words)
    most = _BOUNDED.search(place)
    if most is not None and not rows.oom.any():  # a deque with a maxlen: it grows until it has that many
        left = int(most[1]) - len(ends) // every
        if left * each <= capacity - int(rows.reserved.max()):
            return None
    return Growth(
        rank=rank,
        bytes=each,
        every=every,
        place=place or made,
        kept=bool(place),
        full=int(full),
        larger=False,
        seen=len(ends),
    )


def _rise(levels: Ints) -> tuple[int, Ints]:
    """The period N of the growth, in iterations (the smallest that fits), and the bytes by which each of the last
    iterations exceeds the one N before it; empty where memory does not grow."""
    grown = np.diff(levels)[-_LAST:]
    while len(grown) > _IN_A_ROW and grown[0] > _EVEN * np.median(grown):
        grown = grown[1:]  # state of the optimizer, buckets
    if len(grown) >= _IN_A_ROW and grown.min() >= KEPT_LEAST and grown.max() <= _EVEN * grown.min():
        return 1, grown
    for every in range(2, len(levels) // (_IN_A_ROW + 1) + 1):
        grown = (levels[every:] - levels[:-every])[-_IN_A_ROW * every :]
        if grown.min() >= KEPT_LEAST and grown.max() <= _EQUAL * grown.min():
            return every, grown
    return 1, levels[:0]


def _longer_inputs(rows: MemoryRows, ends: Ints, every: int) -> bool:
    """True if no more than the last iteration's own blocks are larger than those before, as with sequences that get
    longer: `ends` are the rows that end the iterations. A cache whose block is replaced by a larger one is none of
    these, as the other blocks of an iteration stay as they are."""
    blocks = blocks_of(rows)
    first, before_last, last = int(ends[0]), int(ends[-1 - every]), int(ends[-1])
    older = (blocks.row > first) & (blocks.row <= before_last) & ((blocks.freed < 0) | (blocks.freed > last))
    if blocks.size[older].sum() >= _LASTS * (rows.allocated[before_last] - rows.allocated[first]):
        return False
    made = [int(blocks.size[(blocks.row > a) & (blocks.row <= b)].sum()) for a, b in itertools.pairwise(ends.tolist())]
    stays = int(rows.allocated[last] - rows.allocated[int(ends[1])])
    return made[-1] - made[0] > _ALL_LARGER * stays


def _kept(blocks: Blocks, words: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Large blocks that containers keep."""
    of_containers = np.array([word.startswith(KEPT) for word in words] + [False])[blocks.use]
    found: npt.NDArray[np.bool_] = of_containers & (blocks.size >= KEPT_LEAST)
    return found


def _larger(rank: int, rows: MemoryRows, blocks: Blocks, words: Sequence[str], capacity: int) -> Growth | None:
    """Growth of a container whose blocks each iteration replaces by larger ones, as in a cache of keys and values."""
    kept = np.flatnonzero(_kept(blocks, words))
    if not len(kept):
        return None
    use = int(np.bincount(blocks.use[kept], blocks.size[kept]).argmax())
    held, places = kept[blocks.use[kept] == use], places_of(rows, blocks)
    own = (places == places[held[-1]]) & (places >= 0) & (blocks.size >= LOCATED)
    sizes, first = np.unique(blocks.size[own], return_index=True)
    if len(sizes) <= _IN_A_ROW + 1 or (np.diff(blocks.size[own]) < 0).any() or (np.diff(first) <= 0).any():
        return None
    added = np.diff(sizes)[-_LAST:]
    if (blocks.freed[own & (blocks.size < sizes[-2])] < 0).any() or added.max() > _EVEN * added.min():
        return None
    each = int(np.median(added)) * len(held)
    full = len(sizes) + max(0, capacity - int(rows.reserved.max())) // each
    place = words[use].removeprefix(KEPT)
    return Growth(rank=rank, bytes=each, every=1, place=place, kept=True, full=int(full), larger=True, seen=len(sizes))


def _kept_since(rows: MemoryRows, blocks: Blocks, words: Sequence[str]) -> list[int]:
    """Times (ns) at which the large blocks were made that containers keep: in a run without steps, one an iteration.
    Where only graphs keep large blocks: of the line that made the fewest. None if the run goes on after the last one,
    or fails at a line that has no part in the iterations."""
    places = places_of(rows, blocks)
    failed = np.flatnonzero(rows.oom)
    if len(failed):
        later = np.flatnonzero((rows.site >= 0) & (rows.thread == rows.thread[failed[-1]]))
        after = later[later > failed[-1]]
        if len(after) and rows.site[after[0]] not in places:
            return []
    kept = _kept(blocks, words)
    if not kept.any() and any(words[use].endswith(GRAPH) for use in rows.use[rows.use >= 0].tolist()):
        stays = (blocks.end > end_of_work(rows)) & (blocks.use < 0) & (blocks.size >= KEPT_LEAST) & (places >= 0)
        lines, counts = np.unique(places[stays], return_counts=True)
        lines, counts = lines[counts > _IN_A_ROW], counts[counts > _IN_A_ROW]
        if len(lines):
            kept = stays & (places == lines[counts.argmin()])
    made = np.flatnonzero(kept)
    made = made[:: _period(np.diff(made))]
    goes_on = len(made) > 1 and len(blocks.row) - made[-1] <= _GOES_ON * np.diff(made).max()
    return sorted(set(blocks.start[made].tolist())) if goes_on else []


def _period(gaps: Ints) -> int:
    """The number of blocks of an iteration, from the allocations between one and the next: the fewest after which the
    numbers repeat; 1 if they do not."""
    for period in range(1, len(gaps) // (_IN_A_ROW + 1)):
        if (gaps[period:] == gaps[:-period]).mean() > _REPEATS:
            return period
    return 1


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
    places = places_of(rows, blocks)
    alive = (blocks.end > end_of_work(rows)) & (blocks.row >= since) & (places >= 0)
    sums = np.bincount(places[alive], blocks.size[alive], len(words))
    return words[int(sums.argmax())] if sums.any() else ""

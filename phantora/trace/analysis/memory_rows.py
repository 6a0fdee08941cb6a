"""The allocator's rows of each rank, and the blocks that they make and free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phantora.trace.reader import Log
from phantora.trace.schema import OOM, RETRY
from phantora.wire import layout

Ints = npt.NDArray[np.int64]
NEVER = np.iinfo(np.int64).max
LOCATED = 1 << 20  # bytes from which on a block's place is reported (stub/tracer/allocator.cpp)
_EVENTS = frozenset(name.lower() for name in layout.Mem.names())  # rows of other names tell places and uses


@dataclass(kw_only=True)
class MemoryRows:
    """Memory rows of one rank in order."""

    time: Ints
    allocated: Ints
    reserved: Ints
    id: Ints
    link: Ints
    thread: Ints
    free: npt.NDArray[np.bool_]
    alloc: npt.NDArray[np.bool_]
    oom: npt.NDArray[np.bool_]
    retries: int
    asked: Ints
    """Bytes that a failed allocation asked for; of a free ns since the watchdog's poll; -1 for other rows."""
    site: Ints
    """Name of the place of the large block before, of the same thread; -1 for other rows."""
    use: Ints
    """Name of the use of the block that the row `link` made; -1 for other rows."""


def read_memory(log: Log, ranks: Sequence[int]) -> list[MemoryRows]:
    """The rows of each of `ranks`."""
    parts: list[list[tuple[npt.NDArray[np.generic], ...]]] = [[] for _ in ranks]
    position = np.full(max(ranks) + 1, -1, np.int64)
    position[list(ranks)] = np.arange(len(ranks))
    columns = ("end", "value", "bytes", "id", "link", "stream", "name", "seq")
    for batch in log.batches(("rank", *columns), kinds=("memory",), ranks=ranks):
        rank = position[batch["rank"]].astype(np.int16 if len(ranks) < 1 << 15 else np.int64)
        order = np.argsort(rank, kind="stable")
        present, first = np.unique(rank[order], return_index=True)
        values = [np.split(batch[c][order], first[1:]) for c in columns]
        for i, place in enumerate(present.tolist()):
            parts[place].append(tuple(column[i] for column in values))
    words = log.words("name")
    freed, made, oom = (np.array([word == name for word in words] + [False]) for name in ("free", "alloc", OOM))
    places = np.array([word not in _EVENTS for word in words] + [False])
    again = np.array([word == RETRY for word in words] + [False])
    found = []
    for own in parts:
        joined = [np.concatenate(c) for c in zip(*own, strict=True)] if own else [np.zeros(0, np.int64)] * 8
        time, value, reserved, row, link, thread, name, asked = (c.astype(np.int64) for c in joined)
        named = np.where(places[name], name, -1)
        site, use = np.where(link >= 0, -1, named), np.where(link >= 0, named, -1)
        found.append(
            MemoryRows(
                time=time,
                allocated=value,
                reserved=reserved,
                id=row,
                link=link,
                thread=thread,
                free=freed[name],
                alloc=made[name],
                oom=oom[name],
                retries=int(again[name].sum()),
                asked=asked,
                site=site,
                use=use,
            )
        )
    return found


@dataclass(kw_only=True)
class Blocks:
    """Blocks of one rank, in order of their allocation."""

    row: Ints
    """Row of the allocation."""
    size: Ints
    start: Ints
    end: Ints
    """ns; NEVER of what is not freed."""
    freed: Ints
    """Row of the free, -1 of what is not freed."""
    thread: Ints
    use: Ints
    """Index of the name of its use; -1 unknown."""


def blocks_of(rows: MemoryRows) -> Blocks:
    """The blocks of a rank's rows."""
    size = np.diff(rows.allocated, prepend=0)
    made = np.flatnonzero(rows.alloc)
    order = made[np.argsort(rows.id[made], kind="stable")]

    def of_blocks(linked: Ints, value: Ints) -> Ints:
        """By block the value of the row of `linked` that names it; -1 without one."""
        found = np.full(len(rows.time), -1, np.int64)
        if len(order):
            place = np.minimum(np.searchsorted(rows.id[order], rows.link[linked]), len(order) - 1)
            matched = rows.id[order][place] == rows.link[linked]
            found[order[place[matched]]] = value[matched]
        return found[made]

    freed = np.flatnonzero(rows.free & (rows.link >= 0))
    named = np.flatnonzero(rows.use >= 0)
    free, use = of_blocks(freed, freed), of_blocks(named, rows.use[named])
    end = np.where(free < 0, NEVER, rows.time[free])
    return Blocks(
        row=made, size=size[made], start=rows.time[made], end=end, freed=free, thread=rows.thread[made], use=use
    )


def places_of(rows: MemoryRows, blocks: Blocks) -> Ints:
    """The place in the program of each block, as index of words; -1 for small ones and where none is reported."""
    found = np.full(len(blocks.row), -1, np.int64)
    located = np.flatnonzero(rows.site >= 0)
    for number in np.unique(rows.thread[located]).tolist():
        own = located[rows.thread[located] == number]
        large = np.flatnonzero((blocks.thread == number) & (blocks.size >= LOCATED) & (blocks.row < own[-1]))
        found[large] = rows.site[own[np.searchsorted(own, blocks.row[large], "right")]]
    return found


def end_of_work(rows: MemoryRows) -> int:
    """Time (ns) of the last failed allocation, or else of the last allocation: the process ends after it."""
    asked = rows.oom if rows.oom.any() else rows.alloc
    return int(rows.time[asked].max(initial=0))

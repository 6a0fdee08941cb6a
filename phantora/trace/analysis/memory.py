"""Each rank's memory over time, and what its peak is made of.

The log has a row for each block that the framework's allocator hands out or takes back; a free is linked
to its allocation. What a block holds is told from when it was allocated, by which thread, and how
long it lived (docs/analysis.md); nothing is guessed from sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phantora.trace.analysis.annotations import Annotations
from phantora.trace.analysis.report import MemoryBlock, MemoryReport
from phantora.trace.analysis.steps import Step, Steps
from phantora.trace.reader import Log
from phantora.trace.schema import OPTIMIZER_STEP

Ints = npt.NDArray[np.int64]
POINTS = 500  # of the timeline
_NEVER = np.iinfo(np.int64).max
_COMMUNICATION = ("FSDP::", "nccl:")
_DDP = "DistributedDataParallel.forward"
MOST_BLOCKS = 2_000  # whose operators are looked up
MOST_SITES = 8
CATEGORIES = (
    "parameters",
    "gradients",
    "optimizer",
    "activations",
    "communication",
    "workspaces",
    "other",
    "fragmentation",
)
_CODE = {name: code for code, name in enumerate(CATEGORIES)}


@dataclass
class _Rows:
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


def _read(log: Log, ranks: Sequence[int]) -> list[_Rows]:
    parts: list[list[tuple[npt.NDArray[np.generic], ...]]] = [[] for _ in ranks]
    position = np.full(max(ranks) + 1, -1, np.int64)
    position[list(ranks)] = np.arange(len(ranks))
    columns = ("end", "value", "bytes", "id", "link", "stream", "name")
    for batch in log.batches(("rank", *columns), kinds=("memory",), ranks=ranks):
        rank = position[batch["rank"]].astype(np.int16 if len(ranks) < 1 << 15 else np.int64)
        order = np.argsort(rank, kind="stable")
        present, first = np.unique(rank[order], return_index=True)
        values = [np.split(batch[c][order], first[1:]) for c in columns]
        for i, place in enumerate(present.tolist()):
            parts[place].append(tuple(column[i] for column in values))
    words = log.words("name")
    freed, made, oom = (np.array([word == name for word in words] + [False]) for name in ("free", "alloc", "oom"))
    found = []
    for own in parts:
        joined = [np.concatenate(c) for c in zip(*own, strict=True)] if own else [np.zeros(0, np.int64)] * 7
        time, value, reserved, row, link, thread, name = (c.astype(np.int64) for c in joined)
        found.append(_Rows(time, value, reserved, row, link, thread, freed[name], made[name], oom[name]))
    return found


def memory(log: Log, ranks: Sequence[int], steps: Steps, annotations: Annotations) -> list[MemoryReport]:
    """One report per rank that has memory rows; the peak is that of the steps reported on."""
    read = _read(log, ranks)
    peaks = [_peak(rows, steps.of_rank[rank]) for rank, rows in zip(ranks, read, strict=True)]
    blocks = [_blocks(rows) for rows in read]
    moments = [_moments(rows, peak, own) for rows, peak, own in zip(read, peaks, blocks, strict=True)]
    operators = _operators_at(log, ranks, moments)
    found = []
    for i, (rank, rows, peak) in enumerate(zip(ranks, read, peaks, strict=True)):
        if peak < 0:
            continue
        time = int(rows.time[peak])
        step = next((s.number for s in steps.of_rank[rank] if s.host[0] <= time <= s.host[1]), None)
        kind = _kinds(rows, blocks[i], i, annotations)
        by_time = _by_category(rows, blocks[i], kind)
        by_category, alive = _at_peak(rows, peak, blocks[i], kind, operators[i].get(time))
        found.append(
            MemoryReport(
                rank=rank,
                peak_time=time,
                peak_step=step,
                peak_allocated=int(rows.allocated[peak]),
                peak_reserved=int(rows.reserved.max()),
                capacity=log.metadata.memory_bytes,
                by_category=by_category,
                timeline=_timeline(rows),
                timeline_by_category=by_time,
                largest=_largest(blocks[i], kind, alive, operators[i]),
                out_of_memory=bool(rows.oom.any()),
            )
        )
    return found


def _moments(rows: _Rows, peak: int, blocks: _Blocks) -> Ints:
    """When the peak and the largest blocks of it were made."""
    if peak < 0:
        return np.zeros(0, np.int64)
    alive = np.flatnonzero((blocks.row <= peak) & ((blocks.freed < 0) | (blocks.freed > peak)))
    largest = alive[np.argsort(-blocks.size[alive], kind="stable")][:MOST_BLOCKS]
    moments: Ints = np.append(blocks.start[largest], rows.time[peak])
    return moments


def _peak(rows: _Rows, steps: Sequence[Step]) -> int:
    """The first row with the most bytes allocated in any of the steps; -1 without rows."""
    if not len(rows.time):
        return -1
    inside = np.zeros(len(rows.time), bool)
    for step in steps:
        inside |= (rows.time >= step.host[0]) & (rows.time <= step.host[1])
    if not bool(inside.any()):
        inside[:] = True
    return int(np.argmax(np.where(inside, rows.allocated, -1)))


@dataclass
class _Blocks:
    """Blocks of one rank, in order of their allocation."""

    row: Ints
    """Of the allocation."""
    size: Ints
    start: Ints
    end: Ints
    """ns; _NEVER of what is not freed."""
    freed: Ints
    """Row of the free, -1 of what is not freed."""
    thread: Ints


def _blocks(rows: _Rows) -> _Blocks:
    size = np.diff(rows.allocated, prepend=0)
    made = np.flatnonzero(rows.alloc)
    freed = np.flatnonzero(rows.free & (rows.link >= 0))
    order = made[np.argsort(rows.id[made], kind="stable")]
    ends = np.full(len(rows.time), -1, np.int64)  # row of the free
    if len(order):
        place = np.minimum(np.searchsorted(rows.id[order], rows.link[freed]), len(order) - 1)
        matched = rows.id[order][place] == rows.link[freed]
        ends[order[place[matched]]] = freed[matched]
    free = ends[made]
    end = np.where(free < 0, _NEVER, rows.time[free])
    return _Blocks(made, size[made], rows.time[made], end, free, rows.thread[made])


def _kinds(rows: _Rows, blocks: _Blocks, position: int, annotations: Annotations) -> Ints:
    """What each block holds, as index of CATEGORIES; workspaces of single operators are not told here."""
    start, end, backward = blocks.start, blocks.end, blocks.thread != 0
    words = annotations.names
    spans = annotations.spans[position]
    optimizers = [s for s in spans if words[s[2]].startswith(OPTIMIZER_STEP)]
    kind = np.full(len(start), _CODE["activations"])
    if not optimizers:
        return np.full(len(start), _CODE["other"])  # without optimizer there is no telling
    begins = np.array([s[0] for s in optimizers], np.int64)
    stops = np.array([s[1] for s in optimizers], np.int64)
    following = np.searchsorted(begins, start, "right")
    next_one = np.append(begins, _NEVER - 1)[following]
    survives = end > next_one  # is there when the optimizer begins
    last = int(stops[-1])
    first_backward = int(rows.time[rows.thread != 0].min(initial=last))
    # What a forward pass makes is gone when the optimizer has run, but for outputs that the script keeps.
    outlives = end > np.append(stops, _NEVER)[following]
    kind[~backward & survives & outlives & (following < len(begins))] = _CODE["other"]
    kind[backward & survives & (following < len(begins))] = _CODE["gradients"]
    kind[(start < max(int(begins[0]), first_backward)) & ~backward & (end >= last)] = _CODE["parameters"]
    inside = (following > 0) & (start < np.append(stops, 0)[following - 1])
    stays = inside & (end > np.append(stops, 0)[following - 1])
    kind[stays] = _CODE["optimizer"]
    kind[inside & ~stays] = _CODE["workspaces"]
    settled = np.isin(kind, [_CODE[c] for c in ("parameters", "gradients", "optimizer")])
    named = np.array([word.startswith(_COMMUNICATION) for word in words] + [False])
    at = named[annotations.at(np.full(len(start), position), start)]
    kind[at & ~settled] = _CODE["communication"]
    kind[_buckets(blocks, [s for s in spans if words[s[2]] == _DDP], begins)] = _CODE["communication"]
    return kind


def _buckets(blocks: _Blocks, forwards: Sequence[tuple[int, int, int]], optimizers: Ints) -> npt.NDArray[np.bool_]:
    """Blocks of DistributedDataParallel's buckets: it makes them anew at the start of its second forward pass, where it
    lets go of those that it was built with. All else that its forward passes allocate are activations."""
    if len(forwards) < 2:
        return np.zeros(len(blocks.start), bool)
    (first, _, _), (begin, stop, _) = forwards[:2]
    replaced = (blocks.start < first) & (blocks.end >= begin) & (blocks.end <= stop)
    second = int(np.searchsorted(optimizers, begin))
    later = int(optimizers[second + 1]) if second + 1 < len(optimizers) else _NEVER - 1
    made = (blocks.start >= begin) & (blocks.start <= stop) & (blocks.end > later) & (blocks.thread == 0)
    found: npt.NDArray[np.bool_] = replaced | made
    return found


def _operators_at(log: Log, ranks: Sequence[int], moments: Sequence[Ints]) -> list[dict[int, _Operator]]:
    """By rank and moment the innermost operator that runs then, of the thread that runs it."""
    found: list[dict[int, _Operator]] = [{} for _ in ranks]
    position = {rank: i for i, rank in enumerate(ranks)}
    shapes, names = log.words("shape"), log.words("op")
    wanted = [np.unique(own) for own in moments]
    for batch in log.batches(("rank", "start", "end", "stream", "op", "shape"), kinds=("operator",), ranks=ranks):
        for rank in np.unique(batch["rank"]).tolist():
            own = wanted[position[rank]]
            rows = np.flatnonzero(batch["rank"] == rank)
            start, end = batch["start"][rows], batch["end"][rows]
            first, last = np.searchsorted(own, start, "left"), np.searchsorted(own, end, "right")
            for i in np.flatnonzero(last > first).tolist():
                row = rows[i]
                op, shape = int(batch["op"][row]), int(batch["shape"][row])
                text = names[op] if op >= 0 else "", shapes[shape] if shape >= 0 else ""
                operator = _Operator(int(start[i]), int(end[i]), int(batch["stream"][row]), *text)
                for moment in own[first[i] : last[i]].tolist():
                    before = found[position[rank]].get(moment)
                    if before is None or operator.start >= before.start:
                        found[position[rank]][moment] = operator
    return found


@dataclass(frozen=True)
class _Operator:
    start: int
    end: int
    thread: int
    name: str
    shape: str


def _at_peak(
    rows: _Rows, peak: int, blocks: _Blocks, kind: Ints, running: _Operator | None
) -> tuple[dict[str, int], Ints]:
    """Bytes alive at row `peak` by category, and the blocks."""
    alive = np.flatnonzero((blocks.row <= peak) & ((blocks.freed < 0) | (blocks.freed > peak)))
    if running is not None:  # what it allocated and frees again is its workspace
        inside = (blocks.start[alive] >= running.start) & (blocks.end[alive] <= running.end)
        kind[alive[inside & (blocks.thread[alive] == running.thread)]] = _CODE["workspaces"]
    sums = np.bincount(kind[alive], blocks.size[alive], len(CATEGORIES)).astype(np.int64)
    found = {name: int(value) for name, value in zip(CATEGORIES, sums, strict=True)}
    allocated = int(rows.allocated[peak])
    found["other"] += allocated - int(sums.sum())  # blocks from before the log's first memory row
    found["fragmentation"] = int(rows.reserved[peak]) - allocated
    return {name: value for name, value in found.items() if value}, alive


def _largest(blocks: _Blocks, kind: Ints, alive: Ints, operators: dict[int, _Operator]) -> list[MemoryBlock]:
    """Of the blocks `alive` those that take most, alike ones together."""
    sums: dict[tuple[int, str, str], list[int]] = {}
    for i in alive[np.argsort(-blocks.size[alive], kind="stable")][:MOST_BLOCKS].tolist():
        operator = operators.get(int(blocks.start[i]))
        key = int(kind[i]), operator.name if operator else "", operator.shape if operator else ""
        total = sums.setdefault(key, [0, 0])
        total[0] += int(blocks.size[i])
        total[1] += 1
    order = sorted(sums.items(), key=lambda item: (-item[1][0], item[0]))
    return [
        MemoryBlock(CATEGORIES[code], operator, shape, size, count)
        for (code, operator, shape), (size, count) in order[:MOST_SITES]
    ]


def _by_category(rows: _Rows, blocks: _Blocks, kind: Ints) -> dict[str, list[int]]:
    """Bytes by category at the moments of the timeline: at the highest level of each stretch."""
    at = _highest(rows)
    found: dict[str, list[int]] = {}
    for code, name in enumerate(CATEGORIES[:-1]):
        own = kind == code
        change = np.zeros(len(rows.time), np.int64)
        np.add.at(change, blocks.row[own], blocks.size[own])
        freed = own & (blocks.freed >= 0)
        np.subtract.at(change, blocks.freed[freed], blocks.size[freed])
        level = np.cumsum(change)[at]
        if level.any():
            found[name] = level.tolist()
    return found


def _slots(rows: _Rows) -> tuple[Ints, int, int]:
    begin, end = int(rows.time[0]), int(rows.time[-1])
    width = max(1, -(-(end - begin + 1) // POINTS))
    return (rows.time - begin) // width, begin, width


def _highest(rows: _Rows) -> Ints:
    """The row of the highest level of each stretch of the timeline."""
    slot, _, _ = _slots(rows)
    order = np.lexsort((np.arange(len(slot)), -rows.allocated, slot))
    found: Ints = order[np.flatnonzero(np.append(True, slot[order][1:] != slot[order][:-1]))]
    return found


def _timeline(rows: _Rows) -> list[tuple[int, int, int]]:
    """Highest level of each of at most POINTS stretches of equal length."""
    slot, begin, width = _slots(rows)
    first = np.flatnonzero(np.append(True, slot[1:] != slot[:-1]))
    allocated = np.maximum.reduceat(rows.allocated, first)
    reserved = np.maximum.reduceat(rows.reserved, first)
    times = begin + slot[first] * width
    return list(zip(times.tolist(), allocated.tolist(), reserved.tolist(), strict=True))

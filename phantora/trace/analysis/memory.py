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
from phantora.trace.analysis.report import MemoryReport
from phantora.trace.analysis.steps import Step, Steps
from phantora.trace.reader import Log

Ints = npt.NDArray[np.int64]
POINTS = 500  # of the timeline
_NEVER = np.iinfo(np.int64).max
_OPTIMIZER = "Optimizer.step#"
_COMMUNICATION = ("FSDP::", "nccl:", "DistributedDataParallel.")
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
    freed, made = (np.array([word == name for word in words] + [False]) for name in ("free", "alloc"))
    found = []
    for own in parts:
        joined = [np.concatenate(c) for c in zip(*own, strict=True)] if own else [np.zeros(0, np.int64)] * 7
        time, value, reserved, row, link, thread, name = (c.astype(np.int64) for c in joined)
        found.append(_Rows(time, value, reserved, row, link, thread, freed[name], made[name]))
    return found


def memory(log: Log, ranks: Sequence[int], steps: Steps, annotations: Annotations) -> list[MemoryReport]:
    """One report per rank that has memory rows; the peak is that of the steps reported on."""
    read = _read(log, ranks)
    peaks = [_peak(rows, steps.of_rank[rank]) for rank, rows in zip(ranks, read, strict=True)]
    operators = _operators_at(log, ranks, [int(r.time[p]) if p >= 0 else -1 for r, p in zip(read, peaks, strict=True)])
    found = []
    for i, (rank, rows, peak) in enumerate(zip(ranks, read, peaks, strict=True)):
        if peak < 0:
            continue
        time = int(rows.time[peak])
        step = next((s.number for s in steps.of_rank[rank] if s.start <= time <= s.end), None)
        found.append(
            MemoryReport(
                rank=rank,
                peak_time=time,
                peak_step=step,
                peak_allocated=int(rows.allocated[peak]),
                peak_reserved=int(rows.reserved.max()),
                capacity=log.metadata.memory_bytes,
                by_category=_categories(rows, peak, i, annotations, operators[i]),
                timeline=_timeline(rows),
            )
        )
    return found


def _peak(rows: _Rows, steps: Sequence[Step]) -> int:
    """The first row with the most bytes allocated in any of the steps; -1 without rows."""
    if not len(rows.time):
        return -1
    inside = np.zeros(len(rows.time), bool)
    for step in steps:
        inside |= (rows.time >= step.start) & (rows.time <= step.end)
    if not bool(inside.any()):
        inside[:] = True
    return int(np.argmax(np.where(inside, rows.allocated, -1)))


def _operators_at(log: Log, ranks: Sequence[int], moments: Sequence[int]) -> list[tuple[Ints, Ints, Ints]]:
    """The operators (start, end, thread) that run on each rank at its moment."""
    at = np.full(max(ranks) + 1, -1, np.int64)
    at[list(ranks)] = moments
    found: dict[int, list[tuple[int, int, int]]] = {rank: [] for rank in ranks}
    for batch in log.batches(("rank", "start", "end", "stream"), kinds=("operator",), ranks=ranks):
        moment = at[batch["rank"]]
        hits = np.flatnonzero((batch["start"] <= moment) & (batch["end"] >= moment))
        for row in hits.tolist():
            found[int(batch["rank"][row])].append(
                (int(batch["start"][row]), int(batch["end"][row]), int(batch["stream"][row]))
            )
    empty = np.zeros((0, 3), np.int64)
    tables = [np.array(found[rank], np.int64) if found[rank] else empty for rank in ranks]
    return [(table[:, 0], table[:, 1], table[:, 2]) for table in tables]


def _categories(
    rows: _Rows, peak: int, position: int, annotations: Annotations, operators: tuple[Ints, Ints, Ints]
) -> dict[str, int]:
    """Bytes of the blocks alive at row `peak`, by what they hold."""
    size = np.diff(rows.allocated, prepend=0)
    made = np.flatnonzero(rows.alloc)
    freed = np.flatnonzero(rows.free & (rows.link >= 0))
    order = made[np.argsort(rows.id[made], kind="stable")]
    ends = np.full(len(rows.time), -1, np.int64)  # row of the free
    if len(order):
        place = np.minimum(np.searchsorted(rows.id[order], rows.link[freed]), len(order) - 1)
        matched = rows.id[order][place] == rows.link[freed]
        ends[order[place[matched]]] = freed[matched]
    alive = made[(made <= peak) & ((ends[made] < 0) | (ends[made] > peak))]
    start = rows.time[alive]
    end = np.where(ends[alive] < 0, _NEVER, rows.time[ends[alive]])
    thread = rows.thread[alive]
    kind = np.full(len(alive), CATEGORIES.index("activations"))

    words = annotations.names
    optimizers = [s for s in annotations.spans[position] if words[s[2]].startswith(_OPTIMIZER)]
    backward = thread != 0
    if optimizers:
        begins = np.array([s[0] for s in optimizers], np.int64)
        stops = np.array([s[1] for s in optimizers], np.int64)
        following = np.searchsorted(begins, start, "right")
        survives = end > np.append(begins, _NEVER - 1)[following]  # is there when the optimizer begins
        last = int(stops[-1])
        first_backward = int(rows.time[rows.thread != 0].min(initial=last))
        kind[backward & survives & (following < len(begins))] = CATEGORIES.index("gradients")
        kind[(start < max(int(begins[0]), first_backward)) & ~backward & (end >= last)] = CATEGORIES.index("parameters")
        inside = (following > 0) & (start < np.append(stops, 0)[following - 1])
        stays = inside & (end > np.append(stops, 0)[following - 1])
        kind[stays] = CATEGORIES.index("optimizer")
        kind[inside & ~stays] = CATEGORIES.index("workspaces")
    else:
        kind[:] = CATEGORIES.index("other")  # without optimizer there is no telling
    named = np.array([word.startswith(_COMMUNICATION) for word in words] + [False])
    at = named[annotations.at(np.full(len(start), position), start)]
    settled = np.isin(kind, [CATEGORIES.index(c) for c in ("parameters", "gradients", "optimizer")])
    kind[at & ~settled] = CATEGORIES.index("communication")
    for begin, stop, on in zip(*(column.tolist() for column in operators), strict=True):
        kind[(start >= begin) & (end <= stop) & (thread == on)] = CATEGORIES.index("workspaces")

    sums = np.bincount(kind, size[alive], len(CATEGORIES)).astype(np.int64)
    found = {name: int(value) for name, value in zip(CATEGORIES, sums, strict=True)}
    allocated = int(rows.allocated[peak])
    found["other"] += allocated - int(sums.sum())  # blocks from before the log's first memory row
    found["fragmentation"] = int(rows.reserved[peak]) - allocated
    return {name: value for name, value in found.items() if value}


def _timeline(rows: _Rows) -> list[tuple[int, int, int]]:
    """Highest level of each of at most POINTS stretches of equal length."""
    begin, end = int(rows.time[0]), int(rows.time[-1])
    width = max(1, -(-(end - begin + 1) // POINTS))
    slot = (rows.time - begin) // width
    first = np.flatnonzero(np.append(True, slot[1:] != slot[:-1]))
    allocated = np.maximum.reduceat(rows.allocated, first)
    reserved = np.maximum.reduceat(rows.reserved, first)
    times = begin + slot[first] * width
    return list(zip(times.tolist(), allocated.tolist(), reserved.tolist(), strict=True))

"""Preparation of both timeline writers: tracks, and the places of slices.

Viewers want slices of one track to nest or to lie apart; a slice that overlaps another in part
comes back with wrong times (Perfetto) or not at all (Chrome), and without a word. Kernels of one
stream never overlap and operators of one thread nest, but links carry several flows at a
time and a user's annotations may cross. So every row is checked, and one that doesn't fit goes to
a further lane of its track.

The pass goes backwards: rows are ordered by end, so then those that enclose come before the enclosed,
and the state kept is the depth of the nesting, not the length of the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from phantora.trace.export.selector import Selector
from phantora.trace.reader import Batch
from phantora.trace.schema import COMMUNICATION_KINDS, DEVICE_KINDS, IMPORTED_KINDS, KINDS

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]

STREAM_KINDS = (*DEVICE_KINDS, "record", "wait", "host_func")
THREAD_KINDS = ("operator", "annotation", "sync", *IMPORTED_KINDS)
LAUNCHED_KINDS = (*DEVICE_KINDS, "host_func")
LAUNCH_CALLS = {"memcpy": "cudaMemcpyAsync", "memset": "cudaMemsetAsync", "host_func": "cudaLaunchHostFunc"}
"""Calls that launch a row, except a kernel's launch."""
TIMELINE_COLUMNS = (
    "kind",
    "rank",
    "stream",
    "name",
    "start",
    "end",
    "launch",
    "ready",
    "id",
    "link",
    "op",
    "shape",
    "cls",
    "provenance",
    "algorithm",
    "comm",
    "seq",
    "bytes",
    "flops",
    "value",
)
"""Columns of the log that timelines show."""

FIRST_PID = 10_000  # rank r's host is process FIRST_PID + r; process 0 has a meaning of its own in Perfetto
NETWORK_PID = 9_999

# Layers: families of tracks. A row may have a place in several.
STREAM, THREAD, COMM, LINK = "stream", "thread", "comm", "link"


@dataclass(kw_only=True)
class Plan:
    """Tracks by layer as (rank, index, lane); lane 0 is the track itself."""

    tracks: dict[str, set[tuple[int, int, int]]]
    communicators: dict[int, str]
    """Texts of ``communicator`` rows: "dp, ranks 0-3"."""
    threads: IdRuns
    """Host thread by operator."""
    record_streams: IdRuns
    """Stream by event record."""
    active: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Rank -> first start and last end of its work on the GPU."""
    links: set[int] = field(default_factory=set)
    """Names of the links whose load is known."""
    powered: set[tuple[int, int]] = field(default_factory=set)
    """Rank and GPU in it whose power is known."""
    moved: dict[tuple[str, int], tuple[Ints, Ints]] = field(default_factory=dict)
    """(layer, batch) -> positions in the batch and their lanes, for the few rows not on lane 0."""

    def lanes(self, layer: str, batch: Batch, rows: Ints) -> Ints:
        """The lane of each of `rows` (positions within `batch` as filtered)."""
        lanes = np.zeros(len(rows), np.int64)
        found = self.moved.get((layer, batch.index))
        if found is not None:
            where = np.searchsorted(found[0], batch.rows[rows])
            where[where == len(found[0])] = 0
            hit = found[0][where] == batch.rows[rows]
            lanes[hit] = found[1][where[hit]]
        return lanes


class IdRuns:
    """A small number for each (rank, id): the thread of an operator, the stream of a record.

    Ids grow and neighbours are similar (the forward pass runs on one thread, the backward pass on
    another), so where the number changes is remembered, not every id.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[Ints, Ints]] = []
        self._table: tuple[Ints, Ints] | None = None

    def add(self, rank: Array, row_id: Array, value: Array) -> None:
        """Adds rows of ranks with their ids and the value of each."""
        key = _id_key(rank, row_id)
        order = np.argsort(key, kind="stable")
        key, number = key[order], value[order].astype(np.int64)
        change = np.flatnonzero(np.diff(number)) + 1
        ends = np.unique(np.concatenate([[0], change - 1, change, [len(key) - 1]]))
        self._parts.append((key[ends], number[ends]))
        self._table = None

    def find(self, rank: Array, row_id: Array) -> Ints:
        """The numbers of ids that were added; 0 for id -1."""
        if not self._parts:
            return np.zeros(len(rank), np.int64)
        if self._table is None:
            keys, values = (np.concatenate(column) for column in zip(*self._parts, strict=True))
            order = np.argsort(keys, kind="stable")
            self._table = keys[order], values[order]
        keys, values = self._table
        where = np.searchsorted(keys, _id_key(rank, np.maximum(row_id, 0)), "right") - 1
        return np.where((row_id >= 0) & (where >= 0), values[np.maximum(where, 0)], 0)


def _id_key(rank: Array, row_id: Array) -> Ints:
    return (rank.astype(np.int64) << 44) | row_id


def _by_track(track: Ints) -> Iterator[tuple[int, Ints]]:
    """Every track with its slices, in their order."""
    if not len(track):
        return
    order = np.argsort(track, kind="stable")
    present, first = np.unique(track[order], return_index=True)
    yield from zip(present.tolist(), np.split(order, first[1:]), strict=True)


class _FlatLanes:
    """Places slices that may not touch each other; fed backwards."""

    def __init__(self) -> None:
        self._free: dict[int, list[int]] = {}  # track -> start of the earliest slice in each lane

    def place(self, track: Ints, start: Ints, end: Ints) -> Ints:
        """Lanes of slices longer than 0, in order of end within the batch."""
        lanes = np.zeros(len(track), np.int64)
        for key, rows in _by_track(track):
            free = self._free.setdefault(key, [np.iinfo(np.int64).max])
            if end[rows[-1]] <= free[0] and bool(np.all(end[rows[:-1]] <= start[rows[1:]])):
                free[0] = int(start[rows[0]])
                continue
            for row in rows[::-1].tolist():
                a, b = int(start[row]), int(end[row])
                lane = next((i for i, limit in enumerate(free) if b <= limit), len(free))
                free[lane : lane + 1] = [a]
                lanes[row] = lane
        return lanes


class _NestedLanes:
    """Places slices that may enclose each other but not cross; fed backwards."""

    def __init__(self) -> None:
        self._open: dict[int, list[list[tuple[int, int]]]] = {}

    def place(self, track: Ints, start: Ints, end: Ints) -> Ints:
        lanes = np.zeros(len(track), np.int64)
        for key, rows in _by_track(track):
            stacks = self._open.setdefault(key, [[]])
            backwards = rows[::-1]
            for row, a, b in zip(backwards.tolist(), start[backwards].tolist(), end[backwards].tolist(), strict=True):
                lane = 0
                while not _nest(stacks[lane], a, b):
                    lane += 1
                    if lane == len(stacks):
                        stacks.append([])
                lanes[row] = lane
        return lanes


def _nest(stack: list[tuple[int, int]], start: int, end: int) -> bool:
    """Puts a slice on the stack of slices that enclose it; False when it crosses one."""
    while stack and stack[-1][0] >= end:
        stack.pop()
    inner = []  # slices with the same end that came first although this one encloses them
    while stack and stack[-1][0] > start and stack[-1][1] == end:
        inner.append(stack.pop())
    fits = not stack or stack[-1][0] <= start
    if fits:
        stack.append((start, end))
    stack.extend(reversed(inner))
    return fits


def track_key(rank: Array, index: Array) -> Ints:
    """One number for (rank, stream), (rank, thread) or the like."""
    return (rank.astype(np.int64) << 32) | index.astype(np.int64)


def make_plan(selector: Selector) -> Plan:
    """Goes through the selected rows once, from the last to the first."""
    tracks: dict[str, set[tuple[int, int, int]]] = {STREAM: set(), THREAD: set(), COMM: set(), LINK: set()}
    plan = Plan(tracks=tracks, communicators=_communicators(selector), threads=IdRuns(), record_streams=IdRuns())
    placers: dict[str, _FlatLanes | _NestedLanes] = {
        STREAM: _FlatLanes(),
        THREAD: _NestedLanes(),
        COMM: _FlatLanes(),
        LINK: _FlatLanes(),
    }
    columns = ("kind", "rank", "stream", "start", "end", "ready", "id", "comm", "name")
    for batch in selector.batches(columns, reverse=True):
        kind = batch["kind"]
        operators = kind == KINDS.index("operator")
        if operators.any():
            plan.threads.add(batch["rank"][operators], batch["id"][operators], batch["stream"][operators])
        records = kind == KINDS.index("record")
        if records.any():
            plan.record_streams.add(batch["rank"][records], batch["id"][records], batch["stream"][records])
        _extend(plan.active, batch)
        plan.links.update(np.unique(batch["name"][kind == KINDS.index("link")]).tolist())
        powered = kind == KINDS.index("power")
        plan.powered.update(zip(batch["rank"][powered].tolist(), batch["stream"][powered].tolist(), strict=True))
        for layer, rows, index, start in layers(batch):
            key = track_key(index[0], index[1])
            long = batch["end"][rows] > start
            lanes = np.zeros(len(rows), np.int64)
            lanes[long] = placers[layer].place(key[long], start[long], batch["end"][rows[long]])
            moved = np.flatnonzero(lanes)
            if len(moved):
                plan.moved[layer, batch.index] = (batch.rows[rows[moved]], lanes[moved])
            for own in np.unique(key).tolist():
                tracks[layer].add((own >> 32, own & 0xFFFFFFFF, 0))
            for own, lane in zip(key[moved].tolist(), lanes[moved].tolist(), strict=True):
                tracks[layer].add((own >> 32, own & 0xFFFFFFFF, lane))
    return plan


def _extend(active: dict[int, tuple[int, int]], batch: Batch) -> None:
    rows = np.flatnonzero(_IS_DEVICE[batch["kind"]])
    for rank in np.unique(batch["rank"][rows]).tolist():
        own = rows[batch["rank"][rows] == rank]
        first, last = int(batch["start"][own].min()), int(batch["end"][own].max())
        known = active.get(rank, (first, last))
        active[rank] = min(first, known[0]), max(last, known[1])


_KIND_OF = np.array([STREAM if k in STREAM_KINDS else THREAD if k in THREAD_KINDS else "" for k in KINDS])
_IS_STREAM, _IS_THREAD = _KIND_OF == STREAM, _KIND_OF == THREAD
_IS_DEVICE = np.array([k in DEVICE_KINDS for k in KINDS])
_IS_COMM = np.array([k in COMMUNICATION_KINDS for k in KINDS])
_IS_FLOW = np.array([k == "flow" for k in KINDS])


def layers(batch: Batch) -> list[tuple[str, Ints, tuple[Array, Array], Ints]]:
    """(layer, rows, (rank, index) of their tracks, their starts there) for every layer that has rows.

    On its communicator's track a collective shows its transfer: from `ready` on.
    """
    kind, found = batch["kind"], []
    for layer, mask, index in (
        (STREAM, _IS_STREAM[kind], "stream"),
        (THREAD, _IS_THREAD[kind], "stream"),
        (COMM, _IS_COMM[kind], "comm"),
        (LINK, _IS_FLOW[kind], "name"),
    ):
        rows = np.flatnonzero(mask)
        if layer == COMM and len(rows):
            rows = rows[(batch["comm"][rows] >= 0) & (batch["ready"][rows] >= 0)]
        if not len(rows):
            continue
        start = batch["start"][rows]
        rank = batch["rank"][rows]
        if layer == COMM:
            start = np.clip(batch["ready"][rows], start, batch["end"][rows])
        elif layer == LINK:
            rank = np.zeros_like(rank)  # links belong to the network, not to a rank
        found.append((layer, rows, (rank, np.maximum(batch[index][rows], 0)), start))
    return found


def _communicators(selector: Selector) -> dict[int, str]:
    found: dict[int, str] = {}
    log = selector.log
    for batch in log.batches(("comm", "name", "shape"), kinds=("communicator",)):
        names, shapes = log.words("name"), log.words("shape")
        for comm, name, shape in zip(
            batch["comm"].tolist(), batch["name"].tolist(), batch["shape"].tolist(), strict=True
        ):
            label = names[name] if name >= 0 else f"communicator {comm}"
            found[comm] = f"{label} (ranks {shapes[shape]})" if shape >= 0 else label
    return found

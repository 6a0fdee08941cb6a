"""Perfetto's native trace: a process per rank; tracks for steps, threads, streams and communicators.

Packets are made a batch at a time (proto.py). The order in the file decides what a reader does
with equal timestamps, so within what can touch on one track:
- an end comes before the begin of the next slice: ends of a batch are written before its begins,
  and slices without length are instants;
- records of events and the ends of waits have tracks of their own, in a group that is closed at first: many have one
  time, and readers stack them;
- on host threads, where slices nest, begins of parents come before begins of children that start
  with them. Parents end later, so begins are written in a pass of their own that goes backwards.

Arrows go from a launch on the host to its work, from a record to the waits for it, from the work to
the host's wait for it, and between the two sides of a send. All that hangs on one id is one flow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from phantora.errors import PhantoraError
from phantora.trace.analysis.faults import windows
from phantora.trace.analysis.stream_names import stream_names
from phantora.trace.export import proto
from phantora.trace.export.files import replacing
from phantora.trace.export.plan import (
    COMM,
    FIRST_PID,
    LAUNCH_CALLS,
    LAUNCHED_KINDS,
    LINK,
    NETWORK_PID,
    STREAM,
    THREAD,
    THREAD_KINDS,
    TIMELINE_COLUMNS,
    Plan,
    layers,
    make_plan,
)
from phantora.trace.export.proto import Piece
from phantora.trace.export.selection import Progress, Selection
from phantora.trace.export.selector import Selector
from phantora.trace.reader import Batch, Log
from phantora.trace.schema import ENGINE_KINDS, IMPORTED_KINDS, KIND_CODE, KINDS
from phantora.wire.layout import GOLDEN

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]

# Field numbers of protos/perfetto/trace/: trace_packet, track_event/*, interned_data.
_PACKET, _TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _INTERNED, _FLAGS, _DESCRIPTOR = 1, 8, 10, 11, 12, 13, 60
_CATEGORY, _ANNOTATION, _TYPE, _NAME, _TRACK, _COUNTER, _FLOWS = 3, 4, 9, 10, 11, 30, 47
_BEGIN, _END, _INSTANT, _COUNT = 1, 2, 3, 4
_STATE_CLEARED, _NEEDS_STATE = 1, 2
_EXPLICIT_ORDER, _UNIT_BYTES = 3, 3
_CATEGORIES = (*ENGINE_KINDS, "launch", "release", "transfer", "step", *IMPORTED_KINDS)
_TEXT_ARGS = {"op": "op", "shape": "shape", "cls": "class", "provenance": "provenance", "algorithm": "algorithm"}
_ARGS = (*_TEXT_ARGS.values(), "bytes", "flops", "sequence", "peer", "wait_ns")


_EVENTS = "events"  # tracks of instants, one a stream
_PASSES = 3  # over the log: the plan, what lies in order of end, what begins on host threads


def write(log: Log, path: str, selection: Selection, progress: Progress | None = None) -> list[str]:
    """Writes the selected part of `log` to `path`."""
    with replacing(path) as file:
        write_into(file, log, selection, progress)
    return [path]


def write_into(file: IO[bytes], log: Log, selection: Selection, progress: Progress | None = None) -> None:
    """Writes it to an open file."""
    selector = Selector(log, selection, progress, _PASSES)
    _Writer(selector, make_plan(selector), file).write()


def write_both(a: Log, b: Log, path: str) -> None:
    """Writes both runs to one trace at `path`, the processes of a and b apart, the later one moved so
    that their last steps begin together."""
    selectors = [Selector(log, Selection()) for log in (a, b)]
    begins = [max(own[-1].start for own in selector.steps.of_rank.values()) for selector in selectors]
    with replacing(path) as file:
        for i, (selector, label) in enumerate(zip(selectors, ("a: ", "b: "), strict=True)):
            side = _Side(label, i, max(begins) - begins[i])
            _Writer(selector, make_plan(selector), file, side).write()


@dataclass(frozen=True)
class _Side:
    """Keeps a run apart from another in the same trace: ids of processes, tracks, flows and sequences."""

    label: str = ""
    index: int = 0
    shift: int = 0
    """Added to all times."""

    @property
    def sequence(self) -> int:
        return 1 + self.index

    @property
    def ranks(self) -> int:
        """Added to ranks where they make ids."""
        return self.index << 16


class _Names:
    """Interned event names: the log's, then our own."""

    def __init__(self, words: list[str]) -> None:
        self.words = list(words)
        self._own: dict[str, int] = {}

    def own(self, text: str) -> int:
        """The interning id of a name that is not the log's."""
        if text not in self._own:
            self.words.append(text)
            self._own[text] = len(self.words)
        return self._own[text]


class _Writer:
    def __init__(self, selector: Selector, plan: Plan, file: IO[bytes], side: _Side = _Side()) -> None:
        self.selector, self.plan, self.file, self.log = selector, plan, file, selector.log
        self.side = side
        self.head = proto.number(_SEQUENCE, side.sequence) + proto.number(_FLAGS, _NEEDS_STATE)
        self.names = _Names(self.log.words("name"))
        self.unnamed = self.names.own("(unnamed)")
        self.launch_name = np.array([self.names.own(LAUNCH_CALLS.get(k, "cudaLaunchKernel")) for k in KINDS])
        self.release_name = self.names.own("wait is over")
        self.step_names = {
            step.name: self.names.own(step.name) for own in selector.steps.of_rank.values() for step in own
        }
        self.faults = [(one, self.names.own(one.text)) for one in windows(self.log.metadata.extra)]
        self.argument = {name: i + 1 for i, name in enumerate(_ARGS)}
        self.text_base: dict[str, int] = {}
        base = 1
        for column in _TEXT_ARGS:
            self.text_base[column] = base
            base += len(self.log.words(column))
        for rank in selector.ranks:
            plan.tracks[THREAD].add((rank, 0, 0))
        self.uuids: dict[str, tuple[Ints, Ints]] = {}  # layer -> sorted keys, uuids
        self.next_uuid = 1 + (side.index << 32)

    def write(self) -> None:
        self._dictionaries()
        self._descriptors()
        self._steps()
        self._faults()
        for batch in self.selector.batches(TIMELINE_COLUMNS):
            self._batch(batch)
        columns = ("kind", "rank", "stream", "name", "start", "end", "id", "op", "shape")
        for batch in self.selector.batches(columns, THREAD_KINDS, reverse=True):
            self._thread_begins(batch)

    # ------------------------------------------------------------------ what comes first

    def _dictionaries(self) -> None:
        def entries(field: int, text_field: int, words: Iterable[str]) -> Iterator[bytes]:
            for i, word in enumerate(words):
                yield proto.blob(field, proto.number(1, i + 1), proto.blob(text_field, word))

        texts = [word for column in _TEXT_ARGS for word in self.log.words(column)]
        flags = proto.number(_SEQUENCE, self.side.sequence) + proto.number(_FLAGS, _STATE_CLEARED | _NEEDS_STATE)
        interned = proto.blob(
            _INTERNED,
            *entries(1, 2, _CATEGORIES),
            *entries(2, 2, self.names.words),
            *entries(3, 2, _ARGS),
            *entries(29, 2, texts),
        )
        self.file.write(proto.blob(_PACKET, flags, interned))

    def _descriptors(self) -> None:
        meta = self.log.metadata
        self.process: dict[int, int] = {}
        for rank in self.selector.ranks:
            model = f", {meta.gpu}" if meta.gpu else ""
            label = f"rank {rank} ({meta.where(rank)}{model})"
            self.process[rank] = self._process(self._pid(rank), self.side.label + label, self.side.ranks + rank)
        network = 0
        if self.plan.tracks[LINK] or self.plan.links:
            network = self._process(NETWORK_PID + self.side.ranks, self.side.label + "network", 1 << 20)
        self.step_track = {}
        self.counters: dict[str, Array] = {}
        top = max(self.selector.ranks) + 1
        if self.selector.steps.source != "run":
            for rank in self.selector.ranks:
                self.step_track[rank] = self._track(self.process[rank], "steps", 0)
        words = self.log.words("name")
        comm_words = self.plan.communicators
        streams = stream_names(self.log, self.selector.ranks)
        for layer in (THREAD, STREAM, COMM, LINK):
            keys, uuids = [], []
            for order, (rank, index, lane) in enumerate(sorted(self.plan.tracks[layer])):
                more = f" (overlap {lane})" if lane else ""
                if layer == THREAD:
                    uuid = self._thread(rank, index, lane, ("main" if index == 0 else f"thread {index}") + more)
                elif layer == STREAM:
                    label = streams.get((rank, index), f"stream {index}")
                    uuid = self._track(self.process[rank], label + more, 1000 + order)
                elif layer == COMM:
                    label = comm_words.get(index, f"communicator {index}")
                    uuid = self._track(self.process[rank], label + more, 100_000 + order)
                else:
                    uuid = self._track(network, (words[index] if words else "link") + more, order)
                keys.append(_track(rank, index, lane))
                uuids.append(uuid)
            self.uuids[layer] = np.array(keys, np.int64), np.array(uuids, np.int64)
        self._event_tracks(streams)
        self.links = np.zeros(max(self.plan.links, default=-1) + 1, np.int64)
        for order, index in enumerate(sorted(self.plan.links, key=words.__getitem__)):
            unit = proto.blob(8, proto.blob(6, "%"))
            self.links[index] = self._track(network, words[index] + " used", 1_000_000 + order, unit)
        for order, name in enumerate(("memory allocated", "memory reserved")):
            self.counters[name] = np.zeros(top, np.int64)
            for rank in self.selector.ranks:
                unit = proto.blob(8, proto.number(3, _UNIT_BYTES))
                self.counters[name][rank] = self._track(self.process[rank], name, 10 + order, unit)

        self.power: dict[tuple[int, int], int] = {}
        for rank, gpu in sorted(self.plan.powered):
            unit, more = proto.blob(8, proto.blob(6, "W")), f" of GPU {gpu}" if gpu else ""
            self.power[rank, gpu] = self._track(self.process[rank], "power" + more, 12 + gpu, unit)

    def _event_tracks(self, streams: dict[tuple[int, int], str]) -> None:
        """A group in each rank, with a track for the events of each stream."""
        keys, uuids, group = [], [], dict[int, int]()
        for order, (rank, index) in enumerate(sorted({key[:2] for key in self.plan.tracks[STREAM]})):
            if rank not in group:
                group[rank] = self._track(self.process[rank], "events", 200_000)
            keys.append(_track(rank, index, 0))
            uuids.append(self._track(group[rank], streams.get((rank, index), f"stream {index}"), order))
        self.uuids[_EVENTS] = np.array(keys, np.int64), np.array(uuids, np.int64)

    def _pid(self, rank: int) -> int:
        return FIRST_PID + self.side.ranks + rank

    def _describe(self, *content: bytes) -> int:
        uuid, self.next_uuid = self.next_uuid, self.next_uuid + 1
        descriptor = proto.blob(_DESCRIPTOR, proto.number(1, uuid), *content)
        self.file.write(proto.blob(_PACKET, proto.number(_SEQUENCE, self.side.sequence), descriptor))
        return uuid

    def _process(self, pid: int, name: str, order: int) -> int:
        process = proto.blob(3, proto.number(1, pid), proto.number(3, order), proto.blob(6, name))
        return self._describe(process, proto.number(11, _EXPLICIT_ORDER))

    def _thread(self, rank: int, index: int, lane: int, name: str) -> int:
        if lane:  # no thread of its own: a plain track next to it
            return self._track(self.process[rank], name, 100 + index)
        pid = self._pid(rank)
        tid = pid if index == 0 else (1 << 24) + (self.side.ranks + rank) * 256 + index
        thread = proto.blob(4, proto.number(1, pid), proto.number(2, tid), proto.blob(5, name))
        return self._describe(proto.number(5, self.process[rank]), thread, proto.number(12, 100 + index))

    def _track(self, parent: int, name: str, order: int, *content: bytes) -> int:
        return self._describe(proto.number(5, parent), proto.blob(2, name), proto.number(12, order), *content)

    def _uuid(self, layer: str, rank: Array, index: Array, lane: Array | int) -> Ints:
        keys, uuids = self.uuids[layer]
        wanted = _track(rank.astype(np.int64), index.astype(np.int64), lane)
        places = np.searchsorted(keys, wanted)
        if len(wanted) and (places.max() == len(keys) or bool((keys[places] != wanted).any())):
            raise PhantoraError(f"{self.log.path}: the log is damaged: it names a {layer} of which there are no rows")
        found: Ints = uuids[places]
        return found

    # ------------------------------------------------------------------ packets

    def _event(self, time: Ints, kind: int, track: Ints, *content: Piece) -> None:
        if len(time):
            self.file.write(self._rows(time, kind, track, *content).data)

    def _rows(self, time: Ints, kind: int, track: Ints, *content: Piece) -> proto.Bytes:
        event = proto.message(_TRACK_EVENT, proto.number(_TYPE, kind), *proto.numbers(_TRACK, track), *content)
        moved = time + self.side.shift
        return proto.rows(len(time), proto.message(_PACKET, *proto.numbers(_TIMESTAMP, moved), self.head, *event))

    def _flow(self, rank: Array, row_id: Array) -> npt.NDArray[np.uint64]:
        """The flow of a row: unique in the trace, never 0, apart from the flows of sends."""
        own = rank.astype(np.int64) + self.side.ranks
        flow: Array = (np.int64(1) << 62) | (own << 44) | row_id
        return flow.astype(np.uint64)

    def _steps(self) -> None:
        if not self.step_track:
            return
        rows = [
            (step.start, step.end, self.step_track[rank], self.step_names[step.name])
            for rank, own in self.selector.steps.of_rank.items()
            for step in own
        ]
        start, end, track, name = (np.array(column, np.int64) for column in zip(*rows, strict=True))
        self._spans(start, end, track, name)

    def _faults(self) -> None:
        """A track for each fault, in the first rank that is shown."""
        for one, name in self.faults:
            track = self._track(self.process[min(self.selector.ranks)], "fault", 1)
            self._spans(*(np.array([value], np.int64) for value in (one.start, one.end, track, name)))

    def _spans(self, start: Ints, end: Ints, track: Ints, name: Ints) -> None:
        """What has no rows in the log."""
        self._event(end, _END, track)
        content = [*self._category("step"), *proto.numbers(_NAME, name)]
        self._event(start, _BEGIN, track, *content)

    @staticmethod
    def _category(name: str) -> list[Piece]:
        return [proto.number(_CATEGORY, _CATEGORIES.index(name) + 1)]

    def _name_ids(self, batch: Batch, rows: Ints) -> Ints:
        name = batch["name"][rows].astype(np.int64)
        return np.where(name >= 0, name + 1, self.unnamed)

    def _batch(self, batch: Batch) -> None:
        kind = batch["kind"]
        placed = []
        for layer, rows, (rank, index), start in layers(batch):
            track = self._uuid(layer, rank, index, self.plan.lanes(layer, batch, rows))
            instants = track
            if layer == STREAM:
                events = np.isin(kind[rows], (KIND_CODE["record"], KIND_CODE["wait"]))
                instants = np.where(events, self._uuid(_EVENTS, rank, index, 0), track)
            placed.append((layer, rows, track, instants, start, batch["end"][rows]))
        for _, _, track, _, start, end in placed:
            ends = end > start
            self._event(end[ends], _END, track[ends])
        for layer, rows, _, instants, start, _ in placed:  # a record before what waits for it
            if layer == STREAM:
                records = kind[rows] == KIND_CODE["record"]
                self._slices(batch, rows[records], _INSTANT, start[records], instants[records])
        self._launches(batch)
        for layer, rows, track, instants, start, end in placed:
            if layer != COMM:
                self._releases(batch, rows, instants)
                points = (end == start) & (kind[rows] != KIND_CODE["record"])
                self._slices(batch, rows[points], _INSTANT, start[points], instants[points])
            if layer != THREAD:
                begins = end > start
                self._slices(batch, rows[begins], _BEGIN, start[begins], track[begins], transfer=layer == COMM)
        self._memory(batch)
        self._links(batch)
        self._power(batch)

    def _launches(self, batch: Batch) -> None:
        """A mark on the host thread where the work was launched; the arrow to it begins there."""
        launched = np.isin(batch["kind"], [KIND_CODE[k] for k in LAUNCHED_KINDS]) & (batch["launch"] >= 0)
        rows = np.flatnonzero(launched)
        if not len(rows) or not self.selector.selection.arrows:
            return
        rank = batch["rank"][rows]
        thread = self.plan.threads.find(rank, batch["link"][rows])
        track = self._uuid(THREAD, rank, thread, 0)
        self._event(
            batch["launch"][rows],
            _INSTANT,
            track,
            *self._category("launch"),
            *proto.numbers(_NAME, self.launch_name[batch["kind"][rows]]),
            *proto.fixed(_FLOWS, self._flow(rank, batch["id"][rows])),
        )

    def _releases(self, batch: Batch, rows: Ints, track: Ints) -> None:
        """A mark where a wait ends, for the arrow from what it waited for: readers draw arrows between
        starts of slices, and a wait starts before the record it waits for."""
        kind = batch["kind"][rows]
        waits = (kind == KIND_CODE["wait"]) | (kind == KIND_CODE["sync"])
        waits &= (batch["link"][rows] >= 0) & (batch["end"][rows] > batch["start"][rows])
        waits &= self.selector.selection.arrows
        rows, track = rows[waits], track[waits]
        name = np.full(len(rows), self.release_name)
        self._event(
            batch["end"][rows],
            _INSTANT,
            track,
            *self._category("release"),
            *proto.numbers(_NAME, name),
            *proto.fixed(_FLOWS, self._flow(batch["rank"][rows], batch["link"][rows])),
        )

    def _slices(self, batch: Batch, rows: Ints, event: int, time: Ints, track: Ints, transfer: bool = False) -> None:
        for chosen, content in self._contents(batch, rows, transfer):
            self._event(time[chosen], event, track[chosen], *content)

    def _contents(self, batch: Batch, rows: Ints, transfer: bool = False) -> Iterator[tuple[Ints, list[Piece]]]:
        """Groups of `rows` that have the same fields, with the fields."""
        if not len(rows):
            return
        kind, get = batch["kind"][rows], batch.columns
        present: list[tuple[str, Array]] = []
        for column in ("op", "shape", "cls", "provenance", "algorithm"):
            if column in get:
                present.append((column, get[column][rows] >= 0))
        if "bytes" in get:
            communication = np.isin(kind, [KIND_CODE["collective"], KIND_CODE["sendrecv"]])
            present.append(("bytes", get["bytes"][rows] > 0))
            present.append(("flops", get["flops"][rows] > 0))
            present.append(("sequence", communication & (get["seq"][rows] >= 0)))
            present.append(("peer", (kind == KIND_CODE["sendrecv"]) & (get["value"][rows] >= 0)))
            present.append(("wait_ns", communication & (get["ready"][rows] > get["start"][rows])))
            flows, flow_mask = self._flows(batch, rows, kind, transfer)
            flow_mask &= self.selector.selection.arrows
        else:
            flows, flow_mask = np.zeros(len(rows), np.uint64), np.zeros(len(rows), bool)
        key = kind.astype(np.int64) << 16
        for bit, (_, mask) in enumerate([*present, ("flow", flow_mask)]):
            key |= mask.astype(np.int64) << bit
        for value in np.unique(key).tolist():
            chosen = np.flatnonzero(key == value)
            own = rows[chosen]
            content = self._category("transfer" if transfer else KINDS[value >> 16])
            content += proto.numbers(_NAME, self._name_ids(batch, own))
            for bit, (name, _) in enumerate(present):
                if value >> bit & 1:
                    content += self._argument(batch, own, name)
            if value >> len(present) & 1:
                content += proto.fixed(_FLOWS, flows[chosen])
            yield chosen, content

    def _argument(self, batch: Batch, rows: Ints, name: str) -> list[Piece]:
        key = proto.number(1, self.argument[_TEXT_ARGS.get(name, name)])
        if name in _TEXT_ARGS:
            return proto.message(
                _ANNOTATION, key, *proto.numbers(17, batch[name][rows] + np.int64(self.text_base[name]))
            )
        if name == "flops":
            return proto.message(_ANNOTATION, key, *proto.fixed(5, batch["flops"][rows]))
        column = {"bytes": "bytes", "sequence": "seq", "peer": "value"}.get(name)
        values = batch[column][rows] if column else (batch["ready"] - batch["start"])[rows]
        return proto.message(_ANNOTATION, key, *proto.numbers(4, values))

    def _flows(self, batch: Batch, rows: Ints, kind: Array, transfer: bool) -> tuple[Array, Array]:
        """Ids of the arrows that meet the begin of each row, and which rows have one."""
        rank, link = batch["rank"][rows], batch["link"][rows]
        if transfer:  # the two sides of a send meet on the communicators' tracks
            peer, seq = batch["value"][rows], batch["seq"][rows]
            pair = (kind == KIND_CODE["sendrecv"]) & (peer >= 0) & (seq >= 0)
            low, high = np.minimum(rank, peer).astype(np.uint64), np.maximum(rank, peer).astype(np.uint64)
            mixed = low + np.uint64(self.side.ranks)
            for part in (high, batch["comm"][rows].astype(np.uint64), seq.astype(np.uint64)):
                mixed = (mixed * np.uint64(GOLDEN)) ^ part  # wraps: a hash
            return mixed | np.uint64(1 << 63), pair
        own = np.isin(kind, [KIND_CODE[k] for k in LAUNCHED_KINDS]) & (batch["launch"][rows] >= 0)
        own |= kind == KIND_CODE["record"]
        waits = ((kind == KIND_CODE["wait"]) | (kind == KIND_CODE["sync"])) & (link >= 0)
        waits &= batch["end"][rows] == batch["start"][rows]  # longer ones have it at their release
        return self._flow(rank, np.where(waits, link, batch["id"][rows])), own | waits

    def _thread_begins(self, batch: Batch) -> None:
        for layer, rows, (rank, index), start in layers(batch):
            if layer != THREAD:
                continue
            long = batch["end"][rows] > start
            rows, start = rows[long][::-1], start[long][::-1]
            if not len(rows):
                continue
            # Of slices with a start in common the longest encloses the others; of equal ones the eldest.
            track = self._uuid(layer, rank[long][::-1], index[long][::-1], self.plan.lanes(layer, batch, rows))
            order = np.lexsort((batch["id"][rows], -batch["end"][rows], start))
            rows, start, track = rows[order], start[order], track[order]
            groups = [
                (chosen, self._rows(start[chosen], _BEGIN, track[chosen], *content))
                for chosen, content in self._contents(batch, rows)
            ]
            self.file.write(_in_order(len(rows), groups).data)

    def _links(self, batch: Batch) -> None:
        """The share of each link's bandwidth in use: what a stretch carried, and zero from its end on."""
        rows = np.flatnonzero(batch["kind"] == KIND_CODE["link"])
        if not len(rows):
            return
        start, end, track = batch["start"][rows], batch["end"][rows], self.links[batch["name"][rows]]
        used = 100e9 * batch["bytes"][rows] / np.maximum(end - start, 1) / np.maximum(batch["value"][rows], 1)
        # A stretch that follows at once comes later in the log, so its start counts.
        time = np.stack([start, end], 1).ravel()
        value = np.stack([np.rint(used).astype(np.int64), np.zeros(len(rows), np.int64)], 1).ravel()
        self._event(time, _COUNT, np.repeat(track, 2), *proto.numbers(_COUNTER, value))

    def _power(self, batch: Batch) -> None:
        """The watts of each GPU, from the start of a stretch on."""
        rows = np.flatnonzero(batch["kind"] == KIND_CODE["power"])
        start, end = batch["start"][rows], batch["end"][rows]
        watts = np.rint(1e3 * batch["value"][rows] / np.maximum(end - start, 1)).astype(np.int64)
        own = zip(batch["rank"][rows].tolist(), batch["stream"][rows].tolist(), strict=True)
        track = np.array([self.power[key] for key in own], np.int64)
        self._event(start, _COUNT, track, *proto.numbers(_COUNTER, watts))

    def _memory(self, batch: Batch) -> None:
        rows = np.flatnonzero(batch["kind"] == KIND_CODE["memory"])
        if not len(rows):
            return
        rows = rows[np.argsort(batch["rank"][rows], kind="stable")]
        rank = batch["rank"][rows]
        for name, column in (("memory allocated", "value"), ("memory reserved", "bytes")):
            value = batch[column][rows]
            changed = np.ones(len(rows), bool)
            changed[1:] = (value[1:] != value[:-1]) | (rank[1:] != rank[:-1])
            self._event(
                batch["end"][rows[changed]],
                _COUNT,
                self.counters[name][rank[changed]],
                *proto.numbers(_COUNTER, value[changed]),
            )


def _in_order(count: int, groups: list[tuple[Ints, proto.Bytes]]) -> proto.Bytes:
    """Records of several shapes, each at its place: `groups` are (positions, records)."""
    if len(groups) == 1 and len(groups[0][0]) == count:
        return groups[0][1]
    length = np.zeros(count, np.int64)
    for positions, records in groups:
        length[positions] = records.shape[1]
    offset = np.cumsum(length) - length
    out = np.empty(int(length.sum()), np.uint8)
    for positions, records in groups:
        out[offset[positions][:, None] + np.arange(records.shape[1])] = records
    return out


def _track(rank: Array | int, index: Array | int, lane: Array | int) -> Any:
    return (rank << 40) | (index << 8) | lane

"""The recording of a real rank (docs/replay.md): its records, from its trace, with the measured times of launches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from phantora.cost.parse import write_signature
from phantora.importers.linking import Links
from phantora.importers.rank import CODES, Group, KernelForm, Operator, RankTrace, Vocabulary, is_device
from phantora.importers.schedule import WHOLE_GPU, Joint, Part, Schedule, Sync
from phantora.trace.schema import COPY_NAMES, RunMetadata
from phantora.wire import layout
from phantora.wire.records import make, pack

RECORD = layout.dtype(layout.Record)
Records = npt.NDArray[np.void]

_NO_SLOT = layout.CONSTANTS["PH_NO_SLOT"]
_NONBLOCKING = layout.Flag["PH_F_NONBLOCKING"]
_FIRST_STREAM = 1  # stream 0 is the default stream
_SUM = 0  # ncclSum
_DTYPE = {name: number for number, name in enumerate(layout.NCCL_DTYPE_NAMES)}
_BYTES = _DTYPE["uint8"]
_COPY = {name: number for number, name in enumerate(COPY_NAMES.values())}
_MOST_GRID = (1 << 32) - 1
_MOST_OTHER = (1 << 16) - 1
_ONE_BLOCK = KernelForm((1, 1, 1), (1, 1, 1), 0)
_LEAST_LAUNCHED = 0.5  # of the kernels must have a launch
# Of records at one moment: operators open before what they launch, and end after it.
_DEFINES, _OPENS, _WAITS, _LAUNCHES, _SYNCS, _ENDS = range(6)


def missing_for_replay(traces: Mapping[int, RankTrace], links: Mapping[int, Links], metadata: RunMetadata) -> str:
    """Facts that a replay needs and the traces do not have, and how to get them; empty for none."""
    never = next((trace.no_replay for trace in traces.values() if trace.no_replay), "")
    if never:
        return never
    work = {rank: is_device(link.kind) for rank, link in links.items()}
    bare = [rank for rank, device in work.items() if not device.any()]
    if bare:
        return f"rank {bare[0]} has no kernels: profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
    for rank, device in work.items():
        launched = float(np.mean(links[rank].launch[device] >= 0))
        if traces[rank].schedule is None and launched < _LEAST_LAUNCHED:
            if launched:
                return f"rank {rank} has the launches of {launched:.0%} of its kernels: record longer, from earlier on"
            return (
                f"rank {rank} has no launches of its kernels: record longer, from earlier on, and calls of the CPU too "
                "(ProfilerActivity.CPU of torch.profiler)"
            )
    if len(traces) < metadata.world_size and not any(trace.schedule for trace in traces.values()):
        return (
            f"the traces are of {len(traces)} of {metadata.world_size} ranks: profile every rank "
            "(torch.profiler.tensorboard_trace_handler writes a file for each), and import all files together"
        )
    return ""


def idle_recording() -> Records:
    """The recording of a rank that does nothing."""
    return np.concatenate([make("RANK_START", slot=_NO_SLOT, devices=1), make("RANK_EXIT", slot=_NO_SLOT)])


def recording(trace: RankTrace, links: Links, plan: Schedule, words: Vocabulary, shift: int) -> Records:
    """The records of `trace`, `shift` ns later than its clock."""
    return _Recorder(trace, links, plan, words, shift).records()


class _Recorder:
    def __init__(self, trace: RankTrace, links: Links, plan: Schedule, words: Vocabulary, shift: int) -> None:
        self._trace, self._links, self._line, self._joints = trace, links, plan.line, plan.joints
        self._words, self._shift = words, shift
        self._parts: list[bytes] = []
        self._keys: list[tuple[int, int]] = []
        self._names: dict[str, int] = {}
        self._signatures: dict[int, int] = {}
        self._communicators: dict[int, int] = {}
        self._operators: dict[int, int] = {}  # position -> instance

    def records(self) -> Records:
        """All of them, in order of their time."""
        self._put((-1, _DEFINES), self._make("RANK_START", 0, devices=1))
        self._streams()
        self._communicators_of()
        self._host()
        self._launches()
        self._syncs()
        order = sorted(range(len(self._keys)), key=self._keys.__getitem__)
        end = max(0, *(time for time, _ in self._keys)) if self._keys else 0
        data = b"".join([*(self._parts[place] for place in order), self._make("RANK_EXIT", end)])
        return np.frombuffer(bytearray(data), RECORD)

    # ------------------------------------------------------------------ records

    def _put(self, key: tuple[int, int], *records: bytes) -> None:
        self._keys.append(key)
        self._parts.append(b"".join(records))

    @staticmethod
    def _make(kind: str, time: int, **values: Any) -> bytes:
        return pack(kind, time=time, slot=_NO_SLOT, **values)

    def _time(self, own: int) -> int:
        return max(0, own + self._shift)

    def _text(self, kind: str, number: int, text: str) -> list[bytes]:
        """A definition: `text` in pieces, then the record that takes them."""
        data = text.encode()
        pieces = [data[at : at + layout.BLOB_BYTES] for at in range(0, len(data), layout.BLOB_BYTES)]
        blob = layout.dtype(layout.Blob)
        made: list[bytes] = []
        for piece in pieces:
            record = np.zeros(1, blob)
            record["kind"], record["used"] = layout.Kind.BLOB, len(piece)
            record["data"][0, : len(piece)] = np.frombuffer(piece, np.uint8)
            made.append(record.tobytes())
        return [*made, self._make(kind, 0, id=number)]

    def _name(self, text: str) -> int:
        number = self._names.get(text)
        if number is None:
            number = self._names[text] = len(self._names)
            self._put((-1, _DEFINES), *self._text("DEFINE_NAME", number, text))
        return number

    def _name_of(self, row: int) -> int:
        return self._name(str(self._words.names.words[self._trace.rows["name"][row]]))

    def _signature(self, sig: int) -> int:
        number = self._signatures.get(sig)
        if number is None:
            number = self._signatures[sig] = len(self._signatures)
            operator: Operator = self._words.signatures.words[sig]
            self._put((-1, _DEFINES), *self._text("DEFINE_SIGNATURE", number, write_signature(operator.signature)))
        return number

    # ------------------------------------------------------------------ what a rank has

    def _streams(self) -> None:
        for stream in np.unique(self._trace.rows["stream"][self._line.rows]).tolist():
            if stream >= _FIRST_STREAM:
                self._put((0, _DEFINES), self._make("STREAM_CREATE", 0, stream=stream, flags=_NONBLOCKING))

    def _communicators_of(self) -> None:
        used = {part.group for joint in self._joints.values() for part in joint.parts}
        for group in sorted(used):
            number = self._communicators[group] = len(self._communicators) + 1
            found: Group = self._words.groups.words[group]
            label = self._text("COMM_CREATE", number, found.purpose or found.name)
            label[-1] = self._make(
                "COMM_CREATE",
                0,
                id=number,
                key_lo=group,
                members=len(found.ranks),
                rank=found.ranks.index(self._trace.rank),
            )
            self._put((0, _DEFINES), *label)

    # ------------------------------------------------------------------ the host

    def _host(self) -> None:
        """Operators and annotations."""
        rows, kind = self._trace.rows, self._links.kind
        launches: dict[int, list[int]] = {}
        for row, launch in zip(self._line.rows.tolist(), self._line.launch.tolist(), strict=True):
            launches.setdefault(int(self._links.operator[row]), []).append(launch)
        for position in np.flatnonzero(kind == CODES["operator"]).tolist():
            self._operator(position, launches.get(position, []))
        for position in np.flatnonzero(kind == CODES["annotation"]).tolist():
            start, end = self._time(int(rows["start"][position])), self._time(int(rows["end"][position]))
            thread, name = min(255, int(rows["stream"][position])), self._name_of(position)
            self._put((end, _ENDS), self._make("ANNOTATION", end, thread=thread, start=start, id=name))

    def _operator(self, position: int, launches: list[int]) -> None:
        rows = self._trace.rows
        start, end = int(rows["start"][position]), int(rows["end"][position])
        begin, stop = (self._time(time) for time in (min(start, *launches, end), max(end, *launches, start)))
        instance = self._operators[position] = len(self._operators) + 1
        signature = self._signature(int(rows["sig"][position]))
        opened = self._make(
            "OP_BEGIN",
            begin,
            op=instance,
            id=signature,
            start=self._time(start),
            thread=min(255, int(rows["stream"][position])),
        )
        self._put((begin, _OPENS), opened)
        self._put((stop, _ENDS), self._make("OP_END", stop, op=instance, id=signature))

    def _syncs(self) -> None:
        for sync in self._line.syncs:
            time, resumes = self._time(sync.time), self._time(sync.resumes)
            thread = min(255, int(self._trace.rows["stream"][sync.row])) if sync.row >= 0 else 0
            if sync.item == WHOLE_GPU:
                record = make("DEVICE_SYNC", time=time, thread=thread)
            elif sync.room:
                stream = int(self._trace.rows["stream"][self._line.rows[sync.item]])
                record = make("ROOM", time=time, thread=thread, stream=stream, depth=self._behind(sync))
            else:
                record = make("EVENT_SYNC", time=time, thread=thread, id=sync.item + 1)
            record.view(layout.answered())["resumes"] = resumes
            self._put((time, _WAITS if sync.room else _SYNCS), record.tobytes())

    def _behind(self, sync: Sync) -> int:
        """Commands behind a launch on its stream at the moment of a wait for room."""
        rows, line = self._trace.rows, self._line
        stream = rows["stream"][line.rows]
        own = np.flatnonzero(stream == stream[sync.item])
        later = own[(own > sync.item) & (line.launch[own] < sync.time)]
        waits = sum(w.stream == stream[sync.item] and line.launch[sync.item] < w.time < sync.time for w in line.waits)
        records = sum(int(item) in self._awaited for item in [sync.item, *later.tolist()])
        return len(later) + int(waits) + records

    # ------------------------------------------------------------------ the GPU

    def _launches(self) -> None:
        line, rows = self._line, self._trace.rows
        self._awaited = {wait.item for wait in line.waits}
        self._awaited |= {sync.item for sync in line.syncs if sync.item != WHOLE_GPU and not sync.room}
        own = line.rows
        length = rows["end"][own] - rows["start"][own]
        above, signed = self._links.operator[own], rows["sig"][own] >= 0
        columns = (own, line.launch, line.delay, rows["stream"][own], length, above, signed)
        values = zip(*(column.tolist() for column in columns), strict=True)
        for place, (row, launch, delay, stream, duration, parent, is_operator) in enumerate(values):
            time, joint = self._time(launch), self._joints.get(row)
            crowd = joint.crowd if joint is not None else 1.0
            duration = joint.duration if joint is not None else duration
            records = [self._make("TIMED", time, duration=duration, delay=delay, crowd=crowd)]
            operator = self._operators.get(parent, 0)
            around: tuple[bytes, bytes] | None = None
            if not operator and is_operator:
                operator, around = self._around(row, time)
            if joint is None:
                records.append(self._work(row, time, operator))
            else:
                records += self._communication(time, stream, operator, joint)
            if place in self._awaited:
                records.append(self._make("EVENT_RECORD", time, stream=stream, id=place + 1))
            self._put((time, _LAUNCHES), *(records if around is None else [around[0], *records, around[1]]))
        for wait in line.waits:
            time = self._time(wait.time)
            self._put((time, _WAITS), self._make("STREAM_WAIT", time, stream=wait.stream, id=wait.item + 1))

    def _around(self, row: int, time: int) -> tuple[int, tuple[bytes, bytes]]:
        """The instance of a row that is an operator itself, with its begin and end on the host."""
        signature = self._signature(int(self._trace.rows["sig"][row]))
        instance = self._operators[-2 - row] = len(self._operators) + 1
        opened = self._make("OP_BEGIN", time, op=instance, id=signature, start=time)
        return instance, (opened, self._make("OP_END", time, op=instance, id=signature))

    def _work(self, row: int, time: int, operator: int) -> bytes:
        rows = self._trace.rows
        stream, kind = int(rows["stream"][row]), self._links.kind[row]
        size = int(rows["bytes"][row])
        if kind == CODES["memset"]:
            return self._make("MEMSET", time, stream=stream, op=operator, bytes=size)
        if kind == CODES["memcpy"]:
            name = str(self._words.names.words[rows["name"][row]])
            copy = _COPY.get(name, _COPY[COPY_NAMES["D2D"]])
            return self._make("MEMCPY", time, stream=stream, op=operator, id=copy, bytes=size, peer=-1)
        detail = rows["detail"][row]
        form = self._words.details.words[detail] if detail >= 0 else None
        form = form if isinstance(form, KernelForm) else _ONE_BLOCK
        sizes = {
            f"{part}_{axis}": min(max(1, n), _MOST_GRID if (part, axis) == ("grid", "x") else _MOST_OTHER)
            for part, three in (("grid", form.grid), ("block", form.block))
            for axis, n in zip("xyz", three, strict=True)
        }
        return self._make(
            "KERNEL",
            time,
            stream=stream,
            op=operator,
            id=self._name_of(row),
            shared_bytes=max(0, form.shared_bytes),
            **sizes,
        )

    def _communication(self, time: int, stream: int, operator: int, joint: Joint) -> list[bytes]:
        made = [self._part(time, stream, operator, part) for part in joint.parts]
        return [self._make("GROUP_BEGIN", time, records=len(made)), *made] if len(made) > 1 else made

    def _part(self, time: int, stream: int, operator: int, part: Part) -> bytes:
        dtype = _DTYPE.get(part.dtype, _BYTES)
        width = layout.NCCL_DTYPE_BYTES[dtype]
        if part.bytes % width:
            dtype, width = _BYTES, 1
        common = {
            "stream": stream,
            "op": operator,
            "id": self._communicators[part.group],
            "dtype": dtype,
            "count": part.bytes // width,
            "bytes": part.bytes,
        }
        if part.collective >= 0:
            return self._make("COLLECTIVE", time, coll=part.collective, redop=_SUM, **common)
        return self._make("SEND" if part.sends else "RECV", time, peer=part.peer, **common)

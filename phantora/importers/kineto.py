"""Traces of torch.profiler: Kineto's JSON, of torch 1.13 and later, on NVIDIA's and AMD's GPUs."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from phantora.cost.parse import signature_text
from phantora.cost.tensors import item_bytes
from phantora.importers.json_events import Event, EventFile
from phantora.importers.rank import (
    CODES,
    CommunicationCall,
    Device,
    Group,
    KernelForm,
    Operator,
    RankTrace,
    Record,
    RowBuilder,
    Rows,
    Vocabulary,
    is_device,
)
from phantora.importers.reader import Reader, Report
from phantora.importers.signatures import SHAPE, collective_dtype, key, signature
from phantora.importers.spelling import (
    COLLECTIVES,
    PARAMETERS,
    communicates,
    named_by_call,
    number_streams,
    synchronizes,
)
from phantora.trace.export.chrome import LANE, PRODUCER

_KERNEL, _COPY, _SET, _CALL, _OPERATOR, _ANNOTATION, _PYTHON, _SPAN, _SYNC = range(9)
_CATEGORIES = {
    "kernel": _KERNEL,
    "gpu_memcpy": _COPY,
    "memcpy": _COPY,
    "gpu_memset": _SET,
    "memset": _SET,
    "cuda_runtime": _CALL,
    "cuda_driver": _CALL,
    "runtime": _CALL,
    "driver": _CALL,
    "hip_runtime": _CALL,
    "hip_driver": _CALL,
    "cpu_op": _OPERATOR,
    "operator": _OPERATOR,
    "user_annotation": _ANNOTATION,
    "python_function": _PYTHON,
    "trace": _SPAN,
    "cuda_sync": _SYNC,
}
_RANK_IN_NAME = re.compile(r"rank[-_]?(\d+)", re.IGNORECASE)
_ON_CUDA = 1  # c10::DeviceType
_ON_HIP = 6
_SCOPES = ("enumerate(DataLoader)", "Optimizer.", "ProfilerStep")
"""Begin names of torch's own annotations, which some versions of the profiler write as operators."""
_TRUNCATED = "..."  # in a list of ranks
_NO_STREAM = -1
_MOST_DEVICES = 1 << 15


class _More(NamedTuple):
    """Values of a row that few kinds have."""

    sig: int = -1
    comm: int = -1
    size: int = 0
    value: int = -1
    detail: int = -1


_NOTHING = _More()


class _Reader:
    """Turns the events of one file into rows."""

    def __init__(self, file: EventFile, words: Vocabulary) -> None:
        self.file = file
        self.words = words
        self.builder = RowBuilder()
        self.origin: int | None = None
        self.waits: dict[int, tuple[int, int]] = {}
        self.functions: dict[int, int] = {}
        self.groups: dict[str, Group] = {}
        self.shapes = self.stacks = self.memory = False
        self._signatures: dict[bytes, int] = {}
        self._threads: dict[tuple[Any, Any], int] = {}
        self._batch: list[Record] = []
        self._row = {
            _KERNEL: self._kernel,
            _COPY: self._copy,
            _SET: self._copy,
            _CALL: self._call,
            _OPERATOR: self._operator,
            _ANNOTATION: self._annotation,
            _PYTHON: self._python,
            _SYNC: self._stream_wait,
        }

    def read(self) -> None:
        """Reads the whole file."""
        for events in self.file.batches():
            for event in events:
                try:
                    self._event(event)
                except (TypeError, ValueError, AttributeError, OverflowError):  # no event of Kineto's
                    self.file.dropped += 1
            self.file.dropped += self.builder.add(self._batch)
            self._batch.clear()

    def _event(self, event: Event) -> None:
        phase = event.get("ph")
        if phase == "X":
            self._complete(event)
        elif phase in ("i", "I"):
            self._instant(event)

    def _complete(self, event: Event) -> None:
        what = _CATEGORIES.get(str(event.get("cat", "")).lower())
        if what is None:
            return
        begin = event.get("ts")
        if begin is None:
            return
        start = _ns(begin)
        if what == _SPAN:
            self.origin = start if self.origin is None else min(self.origin, start)
            return
        end = start + max(0, _ns(event.get("dur") or 0))
        self._row[what](event, event.get("args") or {}, start, end)

    def _add(
        self, kind: str, place: tuple[int, int], name: int, start: int, end: int, args: Event, more: _More = _NOTHING
    ) -> None:
        """A row at `place`: its stream or thread, and the number of its GPU."""
        sig, comm, size, value, detail = more
        stream, device = place
        correlation, external = args.get("correlation", -1), args.get("External id", args.get("external id", -1))
        self._batch.append(
            (
                CODES[kind],
                stream,
                name,
                sig,
                comm,
                start,
                end,
                size,
                value,
                correlation if isinstance(correlation, int) else -1,
                external if isinstance(external, int) else -1,
                device,
                detail,
            )
        )

    # ------------------------------------------------------------------ work of the GPU

    def _kernel(self, event: Event, args: Event, start: int, end: int) -> None:
        name = str(event.get("name", ""))
        number = self.words.names.number(name)
        place = _place(event, args)
        if "Collective name" not in args and not communicates(name):
            self._add("kernel", place, number, start, end, args, _More(detail=self._form(args)))
            return
        call = self._call_of(args)
        number = number if call is None else self.words.names.number(named_by_call(name, call.collective))
        paired = "SendRecv" in name if call is None else call.of_pair or call.collective not in COLLECTIVES
        kind = "sendrecv" if paired else "collective"
        detail = -1 if call is None else self.words.details.number(call)
        more = _More(comm=self._group(args), size=_collective_bytes(args), detail=detail)
        self._add(kind, place, number, start, end, args, more)

    def _form(self, args: Event) -> int:
        """The number of the form of a kernel's launch, -1 where the trace has none."""
        grid, block = _triple(args.get("grid")), _triple(args.get("block"))
        if grid is None or block is None:
            return -1
        shared = args.get("shared memory")
        return self.words.details.number(KernelForm(grid, block, shared if isinstance(shared, int) else 0))

    def _call_of(self, args: Event) -> CommunicationCall | None:
        """The call of torch.distributed that a kernel's or an operator's arguments describe."""
        collective = args.get("Collective name")
        if collective is None:
            return None
        peer = next((args[name] for name in ("Dst Rank", "Src Rank") if isinstance(args.get(name), int)), -1)
        dtype = collective_dtype(str(args.get("dtype", "")))
        return CommunicationCall(str(collective), self._group(args), dtype, _collective_bytes(args), peer)

    def _copy(self, event: Event, args: Event, start: int, end: int) -> None:
        name = str(event.get("name", ""))
        kind = "memset" if name.lower().startswith("memset") else "memcpy"
        size = args.get("bytes", args.get("size", 0))
        size = int(size) if isinstance(size, int | float) else 0
        self._add(kind, _place(event, args), self.words.names.number(name), start, end, args, _More(size=size))

    def _stream_wait(self, event: Event, args: Event, start: int, end: int) -> None:
        if event.get("name") != "Stream Wait Event" or not isinstance(args.get("stream"), int):
            return
        recorded, on = args.get("wait_on_cuda_event_record_corr_id", -1), args.get("wait_on_stream", _NO_STREAM)
        if isinstance(recorded, int) and isinstance(on, int):
            self.waits[self.builder.count + len(self._batch)] = recorded, on
        name = self.words.names.number("cudaStreamWaitEvent")
        self._add("wait", _place(event, args), name, start, end, args)

    def _group(self, args: Event) -> int:
        name = args.get("Process Group Name")
        if name is None:
            return -1
        listed = str(args.get("Process Group Ranks", ""))
        purpose = str(args.get("Process Group Description", ""))
        ranks = () if _TRUNCATED in listed else tuple(int(n) for n in re.findall(r"\d+", listed))
        found = self.groups.get(str(name))
        if found is None or (ranks and found.ranks != ranks):
            found = self.groups[str(name)] = Group(str(name), purpose, ranks)
        return self.words.groups.number(found)

    # ------------------------------------------------------------------ the host

    def _thread(self, event: Event) -> tuple[int, int]:
        thread = event.get("pid"), event.get("tid")
        number = self._threads.get(thread)
        if number is None:
            number = self._threads[thread] = len(self._threads)
        return number, -1

    def number_threads(self, rows: Rows, exported: bool) -> None:
        """Threads of hosts from 0 on, the main thread first; in our own exports they are numbered already."""
        order = sorted(self._threads, key=lambda thread: (thread[0] != thread[1], self._threads[thread]))
        number = np.zeros(max(1, len(order)), np.int32)
        for place, (process, thread) in enumerate(order):
            number[self._threads[process, thread]] = int(thread) % LANE if exported else place
        host = ~(is_device(rows["kind"]) | (rows["kind"] == CODES["wait"]))
        rows["stream"][host] = number[rows["stream"][host]]

    def _call(self, event: Event, args: Event, start: int, end: int) -> None:
        name = str(event.get("name", ""))
        kind = "sync" if synchronizes(name) else "call"
        self._add(kind, self._thread(event), self.words.names.number(name), start, end, args)

    def _operator(self, event: Event, args: Event, start: int, end: int) -> None:
        name = str(event.get("name", ""))
        if name.startswith(_SCOPES):
            self._annotation(event, args, start, end)
            return
        code = key(name, args)
        sig = self._signatures.get(code)
        if sig is None:
            found = signature(name, args)
            text = args.get(SHAPE) or signature_text(found)
            sig = self._signatures[code] = self.words.signatures.number(Operator(found, str(text)))
            self.shapes |= bool(text)
        call = self._call_of(args) if name == PARAMETERS else _pair_of(name, args)
        detail = -1 if call is None else self.words.details.number(call)
        function = args.get("Record function id")
        if isinstance(function, int) and function > 0:
            self.functions[function] = self.builder.count + len(self._batch)
        number = self.words.names.number(name)
        self._add("operator", self._thread(event), number, start, end, args, _More(sig, detail=detail))

    def _annotation(self, event: Event, args: Event, start: int, end: int) -> None:
        name = self.words.names.number(str(event.get("name", "")))
        self._add("annotation", self._thread(event), name, start, end, args)

    def _python(self, event: Event, args: Event, start: int, end: int) -> None:
        self.stacks = True
        number, parent = args.get("Python id"), args.get("Python parent id")
        name = self.words.names.number(str(event.get("name", "")))
        own = {"correlation": parent if parent is not None else -1, "External id": number if number is not None else -1}
        self._add("python", self._thread(event), name, start, end, own)

    def _instant(self, event: Event) -> None:
        name = str(event.get("name", ""))
        if name.startswith("Iteration Start") and event.get("ts") is not None:
            begin = _ns(event["ts"])
            self.origin = begin if self.origin is None else min(self.origin, begin)
        if name != "[memory]":
            return
        args = event.get("args") or {}
        if args.get("Device Type") not in (_ON_CUDA, _ON_HIP):
            return
        self.memory = True
        at, size = _ns(event.get("ts", 0)), int(args.get("Bytes", 0))
        word = self.words.names.number("alloc" if size > 0 else "free")
        # The address is kept until frees are linked to their allocations.
        held = {"correlation": args.get("Addr", -1), "External id": abs(size)}
        allocated, reserved = (int(args.get(f"Total {what}", 0)) for what in ("Allocated", "Reserved"))
        self._add("memory", self._thread(event), word, at, at, held, _More(size=reserved, value=allocated))


def _triple(values: Any) -> tuple[int, int, int] | None:
    if not isinstance(values, list) or len(values) != 3 or not all(isinstance(n, int) for n in values):
        return None
    return values[0], values[1], values[2]


def _pair_of(name: str, args: Event) -> CommunicationCall | None:
    """The send or receive that an operator of torch.distributed is; its arguments are tensors, group, peer, tag."""
    collective = {"c10d::send": "send", "c10d::recv_": "recv"}.get(name)
    if collective is None:
        return None
    values = args.get("Concrete Inputs")
    numbers = [int(value) for value in values or () if str(value).isdigit()] if isinstance(values, list) else []
    return CommunicationCall(collective, -1, "", 0, numbers[0] if numbers else -1)


def _place(event: Event, args: Event) -> tuple[int, int]:
    """Stream and GPU of a row."""
    found: list[int] = []
    numbers: tuple[Any, Any] = args.get("stream", event.get("tid", 0)), args.get("device", event.get("pid"))
    for number in numbers:
        try:
            found.append(int(number))
        except (TypeError, ValueError):
            found.append(0)
    return found[0], found[1] if -1 <= found[1] < _MOST_DEVICES else 0


def _ns(us: float | str) -> int:
    """Whole ns of a time in us; whole us are exact, however large."""
    if isinstance(us, str):
        us = float(us)
    whole = int(us)
    rest: int = round((us - whole) * 1000)
    return whole * 1000 + rest


def _collective_bytes(args: Event) -> int:
    """Bytes of the larger of input and output, as NCCL's tests count them; 0 where the trace does not say."""
    elements = [args.get(name) for name in ("In msg nelems", "Out msg nelems")]
    most = max((int(n) for n in elements if isinstance(n, int | float)), default=0)
    return most * item_bytes(collective_dtype(str(args.get("dtype", "")))) if most else 0


def _read(path: str, words: Vocabulary, position: int, progress: Report | None) -> list[RankTrace]:
    """The traces in the file `path`: one, or one for each GPU of a process that uses several. The first rank is what
    the file has, else the one in its name, else `position`. `progress` gets the bytes of the file that are read.

    Raises PhantoraError for a file that is no trace of torch.profiler."""
    file = EventFile(path, progress)
    reader = _Reader(file, words)
    reader.read()
    header = file.header
    job = header.get("distributedInfo")
    job = job if isinstance(job, dict) else {}
    rows = reader.builder.rows()
    number_streams(rows)
    reader.number_threads(rows, exported=str(header.get("producer", "")).startswith(PRODUCER))
    _complete_groups(rows, job, reader.groups, words)
    base, world = header.get("baseTimeNanoseconds"), job.get("world_size")
    notes = []
    if file.cut_short:
        notes.append(f"{path} is cut short: its first {len(rows):,} rows are imported")
    if file.dropped:
        notes.append(f"{path}: {file.dropped:,} damaged events are left out")
    used = np.unique(rows["device"][is_device(rows["kind"])]).tolist() or [0]
    traces = []
    for place, device in enumerate(used):
        kept = np.flatnonzero((rows["device"] == device) | (rows["device"] < 0)) if len(used) > 1 else None
        traces.append(
            RankTrace(
                rank=_rank(job, path, position) + place,
                source=path,
                rows=rows if kept is None else rows[kept],
                base=base if isinstance(base, int) else 0,
                world_size=max(len(used), world if isinstance(world, int) else 1),
                device=_device(header, device),
                origin=reader.origin,
                waits=reader.waits if kept is None else _waits_among(reader.waits, kept),
                functions=reader.functions if kept is None else {},
                versions=_versions(header, job),
                missing=_missing(reader),
                cut_short=file.cut_short,
                notes=notes if not place else [],
            )
        )
    return traces


def _waits_among(waits: dict[int, tuple[int, int]], kept: npt.NDArray[np.intp]) -> dict[int, tuple[int, int]]:
    """`waits` by their positions among the rows that are kept."""
    places = {position: place for place, position in enumerate(kept.tolist()) if position in waits}
    return {place: waits[position] for position, place in places.items()}


def _dicts(listed: Any) -> list[dict[str, Any]]:
    """The objects of a list of the file's head."""
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []


def _complete_groups(rows: Rows, job: dict[str, Any], groups: dict[str, Group], words: Vocabulary) -> None:
    """Kernels give the first ranks of large groups only; the file's head gives them all."""
    listed = {str(entry.get("pg_name")): entry for entry in _dicts(job.get("pg_config"))}
    for name, group in groups.items():
        entry = listed.get(name)
        if entry is None or group.ranks or not isinstance(entry.get("ranks"), list):
            continue
        ranks = tuple(int(rank) for rank in entry["ranks"] if isinstance(rank, int))
        short, whole = words.groups.number(group), words.groups.number(Group(name, group.purpose, ranks))
        rows["comm"][rows["comm"] == short] = whole
        for number in np.unique(rows["detail"][rows["detail"] >= 0]).tolist():
            call = words.details.words[number]
            if isinstance(call, CommunicationCall) and call.group == short:
                rows["detail"][rows["detail"] == number] = words.details.number(replace(call, group=whole))


def _rank(job: dict[str, Any], path: str, position: int) -> int:
    if isinstance(job.get("rank"), int):
        return int(job["rank"])
    found = _RANK_IN_NAME.findall(os.path.basename(path))
    return int(found[-1]) if found else position


def _device(header: dict[str, Any], device: int) -> Device:
    listed = _dicts(header.get("deviceProperties"))
    own = next((entry for entry in listed if entry.get("id") == device), listed[0] if listed else {})
    memory = own.get("totalGlobalMem")
    return Device(str(own.get("name", "")), memory if isinstance(memory, int) else 0, len(listed))


def _versions(header: dict[str, Any], job: dict[str, Any]) -> dict[str, str]:
    found: dict[str, Any] = {"nccl": job.get("nccl_version")}
    found |= {name: header.get(f"{name}_version") for name in ("cuda_runtime", "cuda_driver", "cupti")}
    return {name: str(value) for name, value in found.items() if value}


def _missing(reader: _Reader) -> dict[str, str]:
    found = {}
    if not reader.shapes:
        found["shapes"] = "record_shapes=True"
    if not reader.stacks:
        found["stacks"] = "with_stack=True"
    if not reader.memory:
        found["memory"] = "profile_memory=True"
    return found


READER = Reader(
    reads=lambda path: True,
    read=_read,
    suffixes=(".json", ".json.gz"),
    description="torch.profiler (Kineto), one file or one per rank",
    takes_all=True,
)

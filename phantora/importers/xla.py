"""Traces of XLA, as ``jax.profiler`` writes them: ``HOST.trace.json.gz`` and ``perfetto_trace.json.gz``.

A process of the trace is a device (``/device:GPU:0``), its threads are streams; of a TPU the thread ``XLA Ops`` has the
work. Steps are the host's ``StepTraceAnnotation``.
"""

from __future__ import annotations

import gzip
import os
import re
from typing import Any

from phantora.errors import PhantoraError
from phantora.importers.json_events import Event, EventFile
from phantora.importers.rank import CODES, KernelForm, RankTrace, Record, RowBuilder, Vocabulary
from phantora.importers.reader import Reader, Report
from phantora.importers.spelling import communicates
from phantora.trace.schema import COPY_NAMES

_PLANES = ".xplane.pb"
_JSON = (".json", ".json.gz")
_GZIP_HEAD = b"\x1f\x8b"
_HEAD_BYTES = 1 << 14
_PROCESS = re.compile(rb'"name"\s*:\s*"/(?:device|host):')
_DEVICE = re.compile(r"/device:(GPU|TPU):(\d+)")
_WORK = re.compile(r"Stream #(\d+)|XLA Ops$")
_FORM = re.compile(r"grid:(\d+),(\d+),(\d+).*?block:(\d+),(\d+),(\d+)")
_SHARED = re.compile(r"(?:static|dynamic)_shared:(\d+)")
_SIZE = re.compile(r"\bsize:(\d+)")
_COPY = re.compile(r"Memcpy(H2D|D2H|D2D|P2P)")
_COLLECTIVE = re.compile(r"(?:all-reduce|all-gather|reduce-scatter|all-to-all|collective-\w+|send|recv)[-.\w]*$")
_PAIRWISE = ("collective-permute", "send", "recv")
_NO_REPLAY = "a trace of XLA does not say what streams wait for"


def _is_trace(path: str) -> bool:
    """True for the profiler's protobuf, and for JSON whose processes are XLA's devices."""
    if path.endswith(_PLANES):
        return True
    if not path.endswith(_JSON):
        return False
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == _GZIP_HEAD
        with gzip.open(path) if packed else open(path, "rb") as content:
            return _PROCESS.search(content.read(_HEAD_BYTES)) is not None
    except (OSError, EOFError):
        return False


def _read(path: str, words: Vocabulary, position: int, progress: Report | None) -> list[RankTrace]:
    """The devices in the file `path`. Raises PhantoraError for a file without any."""
    if path.endswith(_PLANES):
        path = _json_of(path)
    file = EventFile(path, progress)
    reader = _Devices(words)
    for events in file.batches():
        for event in events:
            try:
                reader.take(event)
            except (TypeError, ValueError, AttributeError, KeyError):
                file.dropped += 1
    return reader.traces(path, position)


def _json_of(path: str) -> str:
    """The JSON trace that the profiler writes next to its protobuf. Raises PhantoraError without one."""
    found = path.removesuffix(_PLANES) + ".trace.json.gz"
    if not os.path.exists(found):
        raise PhantoraError(
            f"{path}: there is no {os.path.basename(found)} next to it: give the trace.json.gz that jax.profiler writes"
        )
    return found


class _Devices:
    """Rows of each device of a file."""

    def __init__(self, words: Vocabulary) -> None:
        self._words = words
        self._devices: dict[Any, tuple[str, int]] = {}  # by process: kind and number
        self._streams: dict[tuple[Any, Any], int] = {}
        self._work: dict[Any, list[Record]] = {}
        self._steps: list[Record] = []

    def take(self, event: Event) -> None:
        """Reads an event. Names of processes and threads stand before the events."""
        phase, process, args = event.get("ph"), event.get("pid"), event.get("args") or {}
        if phase == "M":
            self._named(event["name"], process, event.get("tid"), str(args.get("name", "")))
        elif phase == "X":
            start = round(float(event["ts"]) * 1000)
            end = start + max(0, round(float(event.get("dur", 0)) * 1000))
            stream = self._streams.get((process, event.get("tid")))
            if stream is not None:
                self._work.setdefault(process, []).append(self._row(str(event["name"]), args, stream, start, end))
            elif process not in self._devices and "step_num" in args:
                name = self._words.names.number(f"ProfilerStep#{int(args['step_num'])}")
                self._steps.append((CODES["annotation"], 0, name, -1, -1, start, end, 0, -1, -1, -1, -1, -1))

    def _named(self, what: str, process: Any, thread: Any, name: str) -> None:
        device, work = _DEVICE.search(name), _WORK.search(name)
        if what == "process_name" and device:
            self._devices[process] = device[1], int(device[2])
        elif what == "thread_name" and work and process in self._devices:
            self._streams[process, thread] = int(work[1] or 0)

    def _row(self, name: str, args: Event, stream: int, start: int, end: int) -> Record:
        copy, detail, size = _COPY.match(name), -1, 0
        if copy:
            told = str(args.get("memcpy_details", ""))
            found = _SIZE.search(told)
            kind, size = "memcpy", int(found[1]) if found else 0
            host = "_PAGEABLE" if "pageable" in told else "_PINNED"
            name = COPY_NAMES[copy[1] + (host if "H" in copy[1] else "")]
        elif name.startswith("Memset"):
            kind = "memset"
        elif communicates(name) or _COLLECTIVE.match(name):
            kind = "sendrecv" if "SendRecv" in name or name.startswith(_PAIRWISE) else "collective"
        else:
            kind, detail = "kernel", self._form(str(args.get("kernel_details", "")))
        number = self._words.names.number(name)
        return CODES[kind], stream, number, -1, -1, start, end, size, -1, -1, -1, -1, detail

    def _form(self, told: str) -> int:
        found = _FORM.search(told)
        if found is None:
            return -1
        a, b, c, x, y, z = map(int, found.groups())
        return self._words.details.number(KernelForm((a, b, c), (x, y, z), sum(map(int, _SHARED.findall(told)))))

    def traces(self, path: str, position: int) -> list[RankTrace]:
        """A rank for each device that worked."""
        if not self._work:
            raise PhantoraError(f"{path}: no work of a GPU or TPU was traced: is it the trace of a host alone?")
        first = position * len(self._work)
        traces = []
        for rank, process in enumerate(sorted(self._work, key=lambda one: self._devices[one]), first):
            builder = RowBuilder()
            builder.add(self._work[process])
            builder.add(self._steps)
            traces.append(
                RankTrace(
                    rank=rank,
                    source=path,
                    rows=builder.rows(),
                    world_size=first + len(self._work),
                    missing={"memory": "XLA's memory viewer, which is not read,"},
                    no_replay=_NO_REPLAY,
                )
            )
        return traces


READER = Reader(reads=_is_trace, read=_read, suffixes=(_PLANES, ".trace.json.gz"), description="jax.profiler")

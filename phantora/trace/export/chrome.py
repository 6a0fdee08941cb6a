"""Chrome's JSON as Kineto (torch.profiler) writes it, for chrome://tracing and HolisticTraceAnalysis.

What HolisticTraceAnalysis (HTA) needs, found by reading version 0.5.0:
- a file per rank, with ``"rank": N`` (and that space) on a line near the top;
- a launch row of category ``cuda_runtime`` with the ``correlation`` of its kernel, and that not 0;
- stream numbers above 0: stream 0 is written as 7, as Kineto numbers the default stream;
- names of NCCL kernels that match ``^nccl.*Kernel``, of copies that begin with Memcpy or Memset;
- rows on a stream count as GPU activity, so waits of streams ("Stream Wait Event", which its critical
  path needs) are points, and only between the first and the last activity.
HTA rounds fractions of a microsecond away unless HTA_DISABLE_NS_ROUNDING=1 is set.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from contextlib import ExitStack
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from phantora.trace.analysis.stream_names import stream_names
from phantora.trace.export.files import replacing
from phantora.trace.export.kineto_args import CollectiveArgs, operator_args
from phantora.trace.export.plan import (
    FIRST_PID,
    LAUNCH_CALLS,
    NETWORK_PID,
    STREAM,
    STREAM_KINDS,
    THREAD,
    THREAD_KINDS,
    TIMELINE_COLUMNS,
    Plan,
    make_plan,
)
from phantora.trace.export.selection import Progress, Selection
from phantora.trace.export.selector import Selector
from phantora.trace.reader import Batch, Log
from phantora.trace.schema import COMMUNICATION_KINDS, COPY_NAMES, KIND_CODE, KINDS, TEXT_COLUMNS

Array = npt.NDArray[Any]

STREAM_OFFSET = 7
"""Kineto's number of the default stream."""
LANE = 1000
"""Threads' and streams' further tracks are numbered so far apart."""
_CATEGORY = {
    "kernel": "kernel",
    "collective": "kernel",
    "sendrecv": "kernel",
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
    "host_func": "gpu_user_annotation",
    "operator": "cpu_op",
    "annotation": "user_annotation",
    "sync": "cuda_runtime",
    "call": "cuda_runtime",
    "python": "python_function",
}
_TEXT_ARGS = tuple((column, "class" if column == "cls" else column) for column in TEXT_COLUMNS[2:])
_PROFILER_STEP = "ProfilerStep#"
_PEER_COPY = f'"{COPY_NAMES["P2P"]}"'  # of one side alone, in symmetric memory
_NCCL = re.compile("^nccl.*Kernel")


_SUFFIX = re.compile(r"\.json(?:\.gz)?$")
PRODUCER = "phantora"
"""Producer of the files, by which they are recognised."""
_BEGIN = (  # the profiler records from time 0 on
    '{"ph":"X","cat":"Trace","name":"PyTorch Profiler (0)","pid":"Spans","tid":"PyTorch Profiler","ts":0.0,"dur":0.0,'
    '"args":{}}'
)
_PASSES = 2  # over the log: the plan, the rows


def write(log: Log, path: str, selection: Selection, progress: Progress | None = None) -> list[str]:
    """Writes a file per rank: to `path` if there is one rank, else where / at its end or {rank} in it says, or with
    the rank before its suffix."""
    selector = Selector(log, selection, progress, _PASSES)
    plan = make_plan(selector)
    if path.endswith("/") or os.path.isdir(path):
        path = os.path.join(path, "rank{rank}.json.gz")
    if "{rank}" not in path and len(selector.ranks) > 1:
        path = _SUFFIX.sub(r"-rank{rank}\g<0>", path)
    if "{rank}" in path:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    paths = {rank: path.replace("{rank}", str(rank)) for rank in selector.ranks}
    with ExitStack() as stack:
        files = {rank: _File(stack.enter_context(replacing(name))) for rank, name in paths.items()}
        texts = _Texts(log)
        for rank, file in files.items():
            file.begin(log, rank, plan, texts.collectives.config(rank))
        _steps(log, selector, files)
        for batch in selector.batches(TIMELINE_COLUMNS):
            _batch(batch, texts, plan, files)
        for file in files.values():
            file.end()
    return list(paths.values())


def _steps(log: Log, selector: Selector, files: dict[int, _File]) -> None:
    """ProfilerStep annotations, by which HTA finds steps, on the main thread, unless the program made its own."""
    if selector.steps.source == "run" or any(word.startswith(_PROFILER_STEP) for word in log.words("name")):
        return
    for rank, steps in selector.steps.of_rank.items():
        first = 0
        for step in steps:
            begin, end = max(first, step.host[0]), min(step.host[1], max(step.end, first))
            if end <= begin:
                continue
            name = json.dumps(f"{_PROFILER_STEP}{step.number}")
            files[rank].add(_slice("user_annotation", name, FIRST_PID + rank, 0, begin, end, ""))
            first = end + 1


class _File:
    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._events: list[str] = []
        self.allocated = 0
        """Bytes after the last block that was written."""

    def begin(self, log: Log, rank: int, plan: Plan, groups: list[dict[str, Any]]) -> None:
        meta, streams = log.metadata, stream_names(log, [rank])
        distributed = {
            "backend": "nccl",
            "rank": rank,
            "world_size": meta.world_size,
            "pg_count": len(groups),
            "pg_config": groups,
        }
        head = {
            "deviceProperties": [
                {"id": number, "name": meta.gpu, "totalGlobalMem": meta.memory_bytes}
                for number in range(max(1, meta.ranks_per_host))
            ],
            "displayTimeUnit": "ms",
            "producer": f"{PRODUCER} {meta.phantora}",
        }
        lines = ('{"schemaVersion": 1', f'"distributedInfo": {json.dumps(distributed)}', json.dumps(head)[1:-1])
        self._raw.write((",\n".join(lines) + ',\n"traceEvents": [\n').encode())
        for pid, label, order in ((FIRST_PID + rank, "CPU", 2 * rank), (rank, meta.gpu or "GPU", 2 * rank + 1)):
            self._meta("process_name", pid, 0, {"name": f"rank {rank} ({meta.where(rank)})"})
            self._meta("process_labels", pid, 0, {"labels": label})
            self._meta("process_sort_index", pid, 0, {"sort_index": order})
        threads = {0} | {index for r, index, _ in plan.tracks[THREAD] if r == rank}
        for thread in sorted(threads):
            self._meta("thread_name", FIRST_PID + rank, thread, {"name": f"thread {thread}" if thread else "main"})
        for stream in sorted({index for r, index, _ in plan.tracks[STREAM] if r == rank}):
            tid = stream + STREAM_OFFSET
            _, _, use = streams.get((rank, stream), "").partition(" (")
            self._meta("thread_name", rank, tid, {"name": f"stream {tid}" + (f" ({use}" if use else "")})
            self._meta("thread_sort_index", rank, tid, {"sort_index": tid})
        self._events.append(_BEGIN)

    def _meta(self, name: str, pid: int, tid: int, args: dict[str, Any]) -> None:
        self._events.append(f'{{"ph":"M","name":"{name}","pid":{pid},"tid":{tid},"ts":0.0,"args":{json.dumps(args)}}}')

    def add(self, event: str) -> None:
        self._events.append(event)

    def flush(self) -> None:
        """Hands what has been added to the file; one event stays, to come without a comma at the end."""
        if len(self._events) > 1:
            last = self._events.pop()
            self._raw.write((",\n".join(self._events) + ",\n").encode())
            self._events = [last]

    def end(self) -> None:
        self._raw.write(("".join(",\n".join(self._events)) + "\n]}\n").encode())


class _Texts:
    """The log's words as JSON texts."""

    def __init__(self, log: Log) -> None:
        self.collectives = CollectiveArgs(log)
        self.operator = [operator_args(word) for word in log.words("shape")]
        self.calls = next(log.batches(("kind",), ("call",)), None) is not None
        """Calls are rows of their own."""
        # The last one is what index -1, no name, finds.
        self.name = [json.dumps(word) for word in [*log.words("name"), "(unnamed)"]]
        self.of = {column: [json.dumps(word) for word in log.words(column)] for column, _ in _TEXT_ARGS}


def _batch(batch: Batch, texts: _Texts, plan: Plan, files: dict[int, _File]) -> None:
    thread = plan.threads.find(batch["rank"], batch["link"]).tolist()
    record_stream = plan.record_streams.find(batch["rank"], batch["link"]).tolist()
    lane = np.zeros(len(batch), np.int64)
    for layer, family in ((STREAM, STREAM_KINDS), (THREAD, THREAD_KINDS)):
        rows = np.flatnonzero(np.isin(batch["kind"], [KIND_CODE[kind] for kind in family]))
        lane[rows] = plan.lanes(layer, batch, rows)
    data = {column: batch[column].tolist() for column in TIMELINE_COLUMNS}
    data["thread"], data["lane"], data["record_stream"] = thread, lane.tolist(), record_stream
    columns = list(data)
    for values in zip(*data.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        kind, rank = KINDS[row["kind"]], row["rank"]
        # Correlation ids are positive and unique in the file; the log's ids are unique in the rank.
        row["correlation"] = rank << 36 | row["id"] + 1
        row["cause"] = rank << 36 | row["link"] + 1
        # Slices that would cross others on their track go to one of their own, far from the others.
        row["tid"] = row["stream"] + LANE * row["lane"]
        add = files[rank].add
        if kind in THREAD_KINDS:
            _host(add, kind, row, texts)
        elif kind in ("record", "wait"):
            _event(add, kind, row, plan)
        elif kind == "memory":
            _memory(files[rank], row, texts)
        elif kind == "link":
            _link(add, row, texts)
        elif kind == "power":
            _power(add, row)
        elif kind not in ("flow", "communicator"):
            _device(add, kind, row, texts)
    for file in files.values():
        file.flush()


Add = Callable[[str], None]
Row = dict[str, Any]


def _link(add: Add, row: Row, texts: _Texts) -> None:
    """The share of a link's bandwidth in use, as a counter."""
    length = max(1, row["end"] - row["start"])
    used = 100e9 * row["bytes"] / length / max(1, row["value"])
    for time, value in ((row["start"], round(used, 1)), (row["end"], 0)):
        add(
            f'{{"ph":"C","name":{texts.name[row["name"]]},"pid":{NETWORK_PID},"tid":0,"ts":{time / 1000},'
            f'"args":{{"used %":{value}}}}}'
        )


def _power(add: Add, row: Row) -> None:
    """The watts of a GPU from the start of a stretch on, as a counter."""
    watts = round(1e3 * row["value"] / max(1, row["end"] - row["start"]))
    add(
        f'{{"ph":"C","name":"power","pid":{FIRST_PID + row["rank"]},"tid":{row["stream"]},"ts":{row["start"] / 1000},'
        f'"args":{{"W":{watts}}}}}'
    )


def _memory(file: _File, row: Row, texts: _Texts) -> None:
    """Writes allocated memory as a counter; for blocks also the event that ``profile_memory=True`` adds. The number of
    the block stands for its address."""
    where = f'"pid":{FIRST_PID + row["rank"]},"tid":{row["stream"]},"ts":{row["end"] / 1000}'
    file.add(f'{{"ph":"C","name":"memory",{where},"args":{{"allocated":{row["value"]},"reserved":{row["bytes"]}}}}}')
    name = texts.name[row["name"]]
    if name in ('"alloc"', '"free"'):
        block = row["link"] if name == '"free"' else row["id"]
        file.add(
            f'{{"ph":"i","cat":"cpu_instant_event","s":"t","name":"[memory]",{where},"args":{{'
            f'"Total Reserved":{row["bytes"]},"Total Allocated":{row["value"]},"Bytes":{row["value"] - file.allocated},'
            f'"Addr":{block},"Device Id":{row["rank"]},"Device Type":1}}}}'
        )
        file.allocated = row["value"]


def _slice(category: str, name: str, pid: int, tid: int, start: int, end: int, args: str) -> str:
    return (
        f'{{"ph":"X","cat":"{category}","name":{name},"pid":{pid},"tid":{tid},'
        f'"ts":{start / 1000},"dur":{(end - start) / 1000},"args":{{{args}}}}}'
    )


def _host(add: Add, kind: str, row: Row, texts: _Texts) -> None:
    rank, name = row["rank"], texts.name[row["name"]]
    if kind == "sync":
        args = f'"correlation":{row["correlation"]}'
    elif kind == "call":
        launched = rank << 36 | row["value"] + 1 if row["value"] >= 0 else row["correlation"]
        args = f'"External id":{row["cause"]},"correlation":{launched}'
    elif kind == "python":
        args = f'"Python id":{row["id"]},"Python parent id":{row["link"] if row["link"] >= 0 else "null"}'
    else:
        args = f'"External id":{row["correlation"]}'
        if row["shape"] >= 0:
            args += f',"shape":{texts.of["shape"][row["shape"]]},{texts.operator[row["shape"]]}'
    add(_slice(_CATEGORY[kind], name, FIRST_PID + rank, row["tid"], row["start"], row["end"], args))
    if name == '"cudaDeviceSynchronize"':
        args += f',"stream":-1,"device":{rank},"context":1'
        add(_slice("cuda_sync", '"Context Sync"', rank, -1, row["start"], row["end"], args))


def _event(add: Add, kind: str, row: Row, plan: Plan) -> None:
    """An event's record or a stream's wait for it: the call, and for a wait the point where it ends."""
    rank, end, args = row["rank"], row["end"], f'"correlation":{row["correlation"]}'
    if row["launch"] >= 0:
        call = '"cudaEventRecord"' if kind == "record" else '"cudaStreamWaitEvent"'
        add(_slice("cuda_runtime", call, FIRST_PID + rank, 0, row["launch"], row["launch"], args))
    first, last = plan.active.get(rank, (0, -1))
    if kind == "wait" and first <= end <= last:
        args += (
            f',"stream":{row["stream"] + STREAM_OFFSET},"device":{rank},'
            f'"wait_on_stream":{row["record_stream"] + STREAM_OFFSET},'
            f'"wait_on_cuda_event_record_corr_id":{row["cause"]}'
        )
        add(_slice("cuda_sync", '"Stream Wait Event"', rank, row["tid"] + STREAM_OFFSET, end, end, args))


def _device(add: Add, kind: str, row: Row, texts: _Texts) -> None:
    """Work on a stream, its launch, and the arrow between them."""
    rank, tid, name = row["rank"], row["tid"] + STREAM_OFFSET, texts.name[row["name"]]
    copies = kind in COMMUNICATION_KINDS and name == _PEER_COPY
    if kind in COMMUNICATION_KINDS and not copies and not _NCCL.match(name[1:]):
        name = f'"ncclDevKernel_{name[1:]}'
    link = f'"correlation":{row["correlation"]}'
    if row["link"] >= 0:
        link = f'"External id":{row["cause"]},{link}'
    args = f'{link},"stream":{row["stream"] + STREAM_OFFSET},"device":{rank},"context":1'
    for column, label in _TEXT_ARGS:
        if row[column] >= 0:
            args += f',"{label}":{texts.of[column][row[column]]}'
    if row["bytes"]:
        args += f',"bytes":{row["bytes"]}'
    if row["flops"]:
        args += f',"flops":{row["flops"]}'
    if kind in COMMUNICATION_KINDS:
        args += f",{texts.collectives.of(row)}"
    kind = "memcpy" if copies else kind
    add(_slice(_CATEGORY[kind], name, rank, tid, row["start"], row["end"], args))
    if row["launch"] >= 0 and not texts.calls:
        at, host = row["launch"], FIRST_PID + rank
        call = f'"{LAUNCH_CALLS.get(kind, "cudaLaunchKernel")}"'
        add(_slice("cuda_runtime", call, host, row["thread"], at, at, link))
        arrow = f'"id":{row["correlation"]},"cat":"ac2g","name":"ac2g"'
        add(f'{{"ph":"s",{arrow},"pid":{host},"tid":{row["thread"]},"ts":{at / 1000}}}')
        add(f'{{"ph":"f",{arrow},"pid":{rank},"tid":{tid},"ts":{row["start"] / 1000},"bp":"e"}}')

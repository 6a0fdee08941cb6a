"""Traces of rocprofv3 as CSV: ``PID_kernel_trace.csv``, with the copies and RCCL's calls in files next to it.

A process is a rank for each of its GPUs. RCCL's kernels are all of one name; they get those of its calls, in their
order, where there are as many.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from phantora.errors import PhantoraError, cause_of
from phantora.importers.rank import CODES, KernelForm, RankTrace, Record, RowBuilder, Vocabulary
from phantora.importers.reader import Reader, Report
from phantora.importers.spelling import communicates
from phantora.trace.analysis.communicators import collective_kind
from phantora.trace.schema import COPY_NAMES

_KERNELS, _COPIES, _CALLS = "kernel_trace.csv", "memory_copy_trace.csv", "rccl_api_trace.csv"
_SUFFIX = "_trace.csv"
_DIRECTIONS = {"HOST_TO_DEVICE": "H2D_PINNED", "DEVICE_TO_HOST": "D2H_PINNED", "DEVICE_TO_DEVICE": "D2D"}
_NO_REPLAY = "a trace of rocprofv3 does not say what streams wait for"
_OTHERS = re.compile(
    r"(?:memory_copy|memory_allocation|scratch_memory|(?:hip|hsa|marker|rccl|rocdecode|rocjpeg)_api)_trace\.csv$"
)
_CALL = re.compile(r"nccl(?!Group|Comm|Get)\w+")
_NUMBER = re.compile(r"\d+")
Row = dict[str, str]


def _read(path: str, words: Vocabulary, position: int, _: Report | None) -> list[RankTrace]:
    """The GPUs of the process that the file `path` is of. Raises PhantoraError for a file that is no such trace."""
    stem = path.removesuffix(_KERNELS)
    if stem == path:
        kernels = _OTHERS.sub(_KERNELS, path)
        if os.path.exists(kernels):
            return []  # it is read with the kernels
        raise PhantoraError(f"{path}: there is no {os.path.basename(kernels)}: profile with rocprofv3 --kernel-trace")
    try:
        return _ranks(path, stem, words, position)
    except (KeyError, ValueError, TypeError, IndexError, csv.Error) as error:
        raise PhantoraError(f"{path}: not a kernel trace of rocprofv3: {type(error).__name__} {error}") from error
    except OSError as error:
        raise PhantoraError(f"{path}: cannot read the trace: {cause_of(error)}") from error


def _ranks(path: str, stem: str, words: Vocabulary, position: int) -> list[RankTrace]:
    kernels = sorted(_rows(path), key=lambda row: int(row["Start_Timestamp"]))
    if not kernels:
        raise PhantoraError(f"{path}: no kernel was traced")
    calls = [row["Function"] for row in _rows(stem + _CALLS) if _CALL.match(row["Function"])]
    called = [row for row in kernels if communicates(row["Kernel_Name"])]
    named = dict(zip(map(id, called), calls, strict=True)) if len(called) == len(calls) else {}
    by_agent: dict[str, list[Record]] = {}
    for row in kernels:
        by_agent.setdefault(row["Agent_Id"], []).append(_kernel(row, named.get(id(row), ""), words))
    for row in _rows(stem + _COPIES):
        agent = next(
            (row[f"{end}_Agent_Id"] for end in ("Destination", "Source") if row[f"{end}_Agent_Id"] in by_agent), ""
        )
        if agent:
            by_agent[agent].append(_copy(row, words))
    first = position * len(by_agent)
    traces = []
    for rank, agent in enumerate(sorted(by_agent, key=lambda name: int(_NUMBER.findall(name)[-1])), first):
        builder = RowBuilder()
        builder.add(by_agent[agent])
        traces.append(
            RankTrace(
                rank=rank,
                source=path,
                rows=builder.rows(),
                world_size=first + len(by_agent),
                missing={"memory": "profile_memory=True of torch.profiler"},
                no_replay=_NO_REPLAY,
            )
        )
    return traces


def _rows(path: str) -> Iterator[Row]:
    """The rows of a file, nothing without one."""
    if not Path(path).exists():
        return
    with open(path, newline="") as file:
        yield from csv.DictReader(file)


def _kernel(row: Row, call: str, words: Vocabulary) -> Record:
    name = row["Kernel_Name"]
    kind = "kernel"
    if communicates(name):
        name = f"{name.partition('(')[0]} {collective_kind(call)}" if call else name
        kind = "sendrecv" if call in ("ncclSend", "ncclRecv") else "collective"
    block = [int(row[f"Workgroup_Size_{axis}"]) for axis in "XYZ"]
    threads = [int(row[f"Grid_Size_{axis}"]) for axis in "XYZ"]
    grid = [-(-count // max(1, size)) for count, size in zip(threads, block, strict=True)]
    shared = next(
        (int(row[key]) for key in ("LDS_Block_Size", "Lds_Block_Size", "Group_Segment_Size") if key in row), 0
    )
    form = KernelForm((grid[0], grid[1], grid[2]), (block[0], block[1], block[2]), shared)
    return _record(kind, name, row, words, words.details.number(form) if kind == "kernel" else -1)


def _copy(row: Row, words: Vocabulary) -> Record:
    direction = row["Direction"].removeprefix("MEMORY_COPY_")
    return _record("memcpy", COPY_NAMES[_DIRECTIONS.get(direction, "D2D")], row, words, -1)


def _record(kind: str, name: str, row: Row, words: Vocabulary, detail: int) -> Record:
    stream: Any = row.get("Stream_Id") or row.get("Queue_Id") or 0
    start, end = int(row["Start_Timestamp"]), int(row["End_Timestamp"])
    number = words.names.number(name)
    return CODES[kind], int(stream), number, -1, -1, start, max(start, end), 0, -1, -1, -1, -1, detail


READER = Reader(
    reads=lambda path: path.endswith(_SUFFIX),
    read=_read,
    suffixes=(_SUFFIX,),
    description="rocprofv3 --kernel-trace --output-format csv, with the files next to it",
)

"""Traces of Nsight Systems: reports (``.nsys-rep``), which ``nsys`` exports, and the SQLite files that it exports.

Tables and columns differ between versions: each is read where it exists. Times are ns. A file contains all processes of
a host. A rank is a process with one of its GPUs, in order of the GPUs.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from phantora.cost.tensors import contiguous_strides
from phantora.cost.types import OperatorSignature, TensorSpec
from phantora.errors import PhantoraError
from phantora.importers.rank import (
    CODES,
    Device,
    Group,
    KernelForm,
    Operator,
    RankTrace,
    Record,
    RowBuilder,
    Rows,
    Vocabulary,
)
from phantora.importers.reader import Reader, Report
from phantora.importers.signatures import UNKNOWN_DTYPE
from phantora.importers.spelling import communicates, number_streams, synchronizes
from phantora.trace.schema import COPY_NAMES

_SUFFIXES = (".sqlite", ".sqlite3", ".db")
_REPORT = ".nsys-rep"
_ROCPD = "rocpd_"
_BATCH = 50_000
_PROCESS = ~0xFFFFFF  # of a global thread id
_PUSH_POP, _START_END = 59, 60  # NVTX ranges
_HOST_TO_DEVICE, _DEVICE_TO_HOST, _WITHIN, _BETWEEN = 1, 2, 8, 10  # CUPTI's kinds of copies
_PAGEABLE = 0  # CUPTI's kind of memory
_VERSION = re.compile(r"_v\d+(?:_ptsz|_ptds)?$")
_OPERATOR = re.compile(r"([\w:]+::[\w.]+|[\w:]+)(?:, (?:seq|op_id) = -?\d+)+(?:, sizes = (\[.*?\]\]|\[\]))?(?:,|$)")
_SHAPE = re.compile(r"\[([\d, ]*)\]")
_MADE_BY = "nsys export --type sqlite FILE.nsys-rep"

Row = tuple[Any, ...]


@dataclass
class _Process:
    """Events of one process, before its rows are given to the ranks of its GPUs."""

    host: list[Record] = field(default_factory=list)
    devices: dict[int, list[Record]] = field(default_factory=dict)
    threads: dict[int, int] = field(default_factory=dict)

    def thread(self, number: int) -> int:
        """The index of a thread, in order of first appearance."""
        return self.threads.setdefault(number, len(self.threads))


class _Database:
    """The tables of a file that are read."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._file = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
            found = self._file.execute("select name from sqlite_master where type = 'table'").fetchall()
        except sqlite3.Error as error:
            raise PhantoraError(
                f"{path}: cannot read the trace: {error}; give a file that `{_MADE_BY}` wrote"
            ) from error
        self.tables = {name for (name,) in found}

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def rows(self, table: str, *columns: str) -> Iterator[Row]:
        """The rows of a table; None for columns that it does not have, nothing without the table."""
        if table not in self.tables:
            return
        known = {row[1] for row in self._file.execute(f"pragma table_info('{table}')")}
        wanted = ", ".join(f'"{column}"' if column in known else "null" for column in columns)
        cursor = self._file.execute(f'select {wanted} from "{table}"')
        while batch := cursor.fetchmany(_BATCH):
            yield from batch


def _read(path: str, words: Vocabulary, _: int, _report: Report | None) -> list[RankTrace]:
    """The traces of all ranks in the file `path`. Raises PhantoraError for a file that is no export of Nsight."""
    if path.endswith(_REPORT):
        with TemporaryDirectory() as folder:
            return _read_database(_exported(path, folder), words)
    return _read_database(path, words)


def _exported(path: str, folder: str) -> str:
    """The database that ``nsys`` makes of a report. Raises PhantoraError where there is no ``nsys``."""
    nsys, target = shutil.which("nsys"), os.path.join(folder, os.path.basename(path).removesuffix(_REPORT) + ".sqlite")
    if nsys is None:
        raise PhantoraError(f"{path}: nsys is not on PATH; export it where it is: nsys export --type sqlite {path}")
    done = subprocess.run(
        [nsys, "export", "--type", "sqlite", "--force-overwrite", "true", "--output", target, path],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode or not os.path.exists(target):
        said = (done.stderr.strip() or done.stdout.strip() or f"status {done.returncode}").splitlines()[-1]
        raise PhantoraError(f"{path}: nsys export failed: {said}")
    return target


def _read_database(path: str, words: Vocabulary) -> list[RankTrace]:
    with closing(_Database(path)) as database:
        if any(name.startswith(_ROCPD) for name in database.tables):
            convert = f"rocpd convert --output-format csv -i {path}"
            raise PhantoraError(f"{path}: a database of rocprofv3; give the kernel_trace.csv that `{convert}` writes")
        if "StringIds" not in database.tables:
            raise PhantoraError(f"{path}: not a trace of Nsight Systems; give a file that `{_MADE_BY}` wrote")
        try:
            return _Reader(database, words).read(path)
        except sqlite3.Error as error:
            raise PhantoraError(f"{path}: the file is damaged: {error}; export it again with `{_MADE_BY}`") from error


class _Reader:
    def __init__(self, database: _Database, words: Vocabulary) -> None:
        self._database, self._words = database, words
        self._text: dict[int, str] = dict(database.rows("StringIds", "id", "value"))
        self._processes: dict[int, _Process] = {}

    def read(self, path: str) -> list[RankTrace]:
        """All rows, by rank."""
        self._kernels()
        self._copies()
        self._calls()
        shapes = self._ranges()
        found = sorted(
            (device, process, self._processes[process])
            for process in self._processes
            for device in self._processes[process].devices
        )
        if not found:
            raise PhantoraError(f"{path}: no kernel was traced; profile with `nsys profile --trace cuda,nvtx`")
        gpus = {
            gpu: (name, memory)
            for gpu, name, memory in self._database.rows("TARGET_INFO_GPU", "id", "name", "totalMemory")
        }
        missing = {"memory": "profile_memory=True of torch.profiler"}
        if not shapes:
            missing["shapes"] = "torch.autograd.profiler.emit_nvtx(record_shapes=True)"
        traces = []
        for rank, (device, _, process) in enumerate(found):
            builder = RowBuilder()
            builder.add(process.devices[device])
            builder.add(process.host)
            name, memory = gpus.get(device, ("", 0))
            rows = builder.rows()
            number_streams(rows)
            traces.append(
                RankTrace(
                    rank=rank,
                    source=path,
                    rows=rows,
                    world_size=len(found),
                    device=Device(str(name or ""), int(memory or 0), len(found)),
                    missing=missing,
                )
            )
        _one_group([trace.rows for trace in traces], words=self._words)
        return traces

    def _process(self, number: int | None) -> _Process:
        return self._processes.setdefault((number or 0) & _PROCESS, _Process())

    def _device(self, row: Record, process: int | None, device: int | None) -> None:
        self._process(process).devices.setdefault(device or 0, []).append(row)

    def _name(self, *numbers: int | None) -> str:
        return next((str(self._text[n]) for n in numbers if n is not None and n in self._text), "")

    def _kernels(self) -> None:
        columns = (
            "start",
            "end",
            "deviceId",
            "streamId",
            "correlationId",
            "globalPid",
            "demangledName",
            "shortName",
            "mangledName",
            "gridX",
            "gridY",
            "gridZ",
            "blockX",
            "blockY",
            "blockZ",
            "staticSharedMemory",
            "dynamicSharedMemory",
        )
        for start, end, device, stream, correlation, process, *more in self._database.rows(
            "CUPTI_ACTIVITY_KIND_KERNEL", *columns
        ):
            name = self._name(*more[:3])
            kind = "kernel" if not communicates(name) else "sendrecv" if "SendRecv" in name else "collective"
            sizes = [int(n or 1) for n in more[3:9]]
            shared = sum(int(n or 0) for n in more[9:])
            form = KernelForm((sizes[0], sizes[1], sizes[2]), (sizes[3], sizes[4], sizes[5]), shared)
            detail = self._words.details.number(form)
            row = self._record(kind, stream, name, start, end, correlation)
            self._device((*row[:-1], detail), process, device)
        graphs = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
        for start, end, device, stream, correlation, process in self._database.rows(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", *graphs
        ):
            self._device(self._record("kernel", stream, "CUDA graph", start, end, correlation), process, device)

    def _copies(self) -> None:
        common = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes")
        copies = self._database.rows("CUPTI_ACTIVITY_KIND_MEMCPY", *common, "copyKind", "srcKind", "dstKind")
        for start, end, device, stream, correlation, process, size, kind, source, target in copies:
            name = _copy_name(kind, source, target)
            self._device(self._record("memcpy", stream, name, start, end, correlation, size), process, device)
        for start, end, device, stream, correlation, process, size in self._database.rows(
            "CUPTI_ACTIVITY_KIND_MEMSET", *common
        ):
            row = self._record("memset", stream, "Memset (Device)", start, end, correlation, size)
            self._device(row, process, device)

    def _calls(self) -> None:
        columns = ("start", "end", "globalTid", "correlationId", "nameId")
        for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"):
            for start, end, thread, correlation, named in self._database.rows(table, *columns):
                name = _VERSION.sub("", self._name(named))
                process = self._process(thread)
                kind = "sync" if synchronizes(name) else "call"
                process.host.append(self._record(kind, process.thread(thread), name, start, end, correlation))

    def _ranges(self) -> bool:
        """NVTX ranges: torch's operators and annotations. Do they have shapes?"""
        shapes = False
        known: dict[str, int] = {}
        columns = ("start", "end", "eventType", "text", "textId", "globalTid")
        for start, end, kind, text, number, thread in self._database.rows("NVTX_EVENTS", *columns):
            if kind not in (_PUSH_POP, _START_END) or end is None or thread is None:
                continue
            name = str(text) if text is not None else self._name(number)
            process = self._process(thread)
            operator = _OPERATOR.match(name)
            if operator is None:
                process.host.append(self._record("annotation", process.thread(thread), name, start, end))
                continue
            called, sizes = operator[1], operator[2] or ""
            if (called + sizes) not in known:
                signature = _signature(called, sizes)
                text = ", ".join(f"{t.dtype}[{','.join(map(str, t.shape))}]" for t in signature.args)
                known[called + sizes] = self._words.signatures.number(Operator(signature, text))
                shapes |= bool(signature.args)
            row = self._record("operator", process.thread(thread), called, start, end, sig=known[called + sizes])
            process.host.append(row)
        return shapes

    def _record(
        self,
        kind: str,
        stream: int | None,
        name: str,
        start: int,
        end: int,
        correlation: int | None = None,
        size: int | None = 0,
        sig: int = -1,
    ) -> Record:
        number = self._words.names.number(name)
        return (
            CODES[kind],
            stream or 0,
            number,
            sig,
            -1,
            start,
            max(start, end),
            size or 0,
            -1,
            -1 if correlation is None else correlation,
            -1,
            -1,
            -1,
        )


def _copy_name(kind: int | None, source: int | None, target: int | None) -> str:
    """A copy's name as Kineto spells it."""
    if kind == _HOST_TO_DEVICE:
        return COPY_NAMES["H2D_PAGEABLE" if source == _PAGEABLE else "H2D_PINNED"]
    if kind == _DEVICE_TO_HOST:
        return COPY_NAMES["D2H_PAGEABLE" if target == _PAGEABLE else "D2H_PINNED"]
    return COPY_NAMES["P2P" if kind == _BETWEEN else "D2D" if kind == _WITHIN else "H2H"]


def _signature(name: str, sizes: str) -> OperatorSignature:
    """An operator whose ranges give the shapes of its tensors, without their dtypes."""
    shapes = [tuple(int(n) for n in match[1].split(",") if n.strip()) for match in _SHAPE.finditer(sizes[1:-1])]
    return OperatorSignature(name, tuple(TensorSpec(UNKNOWN_DTYPE, s, stride=contiguous_strides(s)) for s in shapes))


def _one_group(ranks: list[Rows], words: Vocabulary) -> None:
    """Nsight does not say to which group a collective belongs: if all ranks of the file run the same collectives in the
    same order, it is that of all of them."""
    own = [np.flatnonzero(rows["kind"] == CODES["collective"]) for rows in ranks]
    own = [found[np.argsort(rows["start"][found], kind="stable")] for rows, found in zip(ranks, own, strict=True)]
    names = [rows["name"][found] for rows, found in zip(ranks, own, strict=True)]
    if len(ranks) < 2 or not len(names[0]) or any(not np.array_equal(names[0], other) for other in names[1:]):
        return
    group = words.groups.number(Group("nccl", "nccl", tuple(range(len(ranks)))))
    for rows, found in zip(ranks, own, strict=True):
        rows["comm"][found] = group


READER = Reader(
    reads=lambda path: path.endswith((_REPORT, *_SUFFIXES)),
    read=_read,
    suffixes=(_REPORT, *_SUFFIXES),
    description="Nsight Systems; a report where nsys is on PATH, else its nsys export --type sqlite",
)

"""Event logs with known content, made through the real writer."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from phantora.trace.schema import PriceRow, RunMetadata, Tables
from phantora.trace.writer import ROW, LogWriter
from phantora.wire import layout

Kind = layout.RowKind
Rows = npt.NDArray[np.void]

PEAK = 989e12
METADATA = RunMetadata(
    phantora="0.1",
    command=["train.py", "--layers", "2"],
    cluster="1x2xH100",
    gpu="H100",
    world_size=2,
    ranks_per_host=2,
    peak_flops={"bfloat16": PEAK},
    memory_bytes=80 << 30,
    torch="2.11.0",
    cost_tables=["h100.parquet"],
)
# Columns that are -1 where they say nothing.
ABSENT = ("name", "sig", "price", "comm", "launch", "ready", "link", "seq", "last_rank", "last_id")


@dataclass
class FakeRun:
    """Collects rows by hand and writes them in order of end."""

    metadata: RunMetadata = field(default_factory=lambda: copy.deepcopy(METADATA))
    tables: Tables = field(default_factory=Tables)
    rows: list[dict[str, Any]] = field(default_factory=list)
    trailer: dict[str, Any] = field(default_factory=lambda: {"wall_seconds": 1.5})
    records: dict[int, Rows] = field(default_factory=dict)
    """Records of each rank."""
    _ids: dict[int, int] = field(default_factory=dict)

    def name(self, text: str) -> int:
        if text not in self.tables.names:
            self.tables.names.append(text)
        return self.tables.names.index(text)

    def signature(self, op: str, shape: str) -> int:
        if (op, shape) not in self.tables.signatures:
            self.tables.signatures.append((op, shape))
        return self.tables.signatures.index((op, shape))

    def price(self, *args: Any, **kwargs: Any) -> int:
        self.tables.prices.append(PriceRow(*args, **kwargs))
        return len(self.tables.prices) - 1

    def add(self, kind: int, rank: int, start: int, end: int, name: str | None = None, **columns: Any) -> int:
        """Adds a row and returns its id."""
        row_id = self._ids.get(rank, 0)
        self._ids[rank] = row_id + 1
        row = dict.fromkeys(ABSENT, -1)
        row.update(kind=kind, rank=rank, start=start, end=end, id=row_id)
        if name is not None:
            row["name"] = self.name(name)
        row.update(columns)
        self.rows.append(row)
        return row_id

    def array(self) -> Rows:
        rows = sorted(self.rows, key=lambda row: (row["end"], row["rank"], row["id"]))
        out = np.zeros(len(rows), ROW)
        for i, row in enumerate(rows):
            for column, value in row.items():
                out[i][column] = value
        return out

    def write(self, path: Path, chunks: int | None = None) -> Path:
        return write_rows(path, self.metadata, self.tables, self.array(), self.trailer, chunks, self.records)


def write_rows(
    path: Path,
    metadata: RunMetadata,
    tables: Tables,
    rows: Rows,
    trailer: dict[str, Any],
    chunk: int | None = None,
    records: Mapping[int, Rows] | None = None,
) -> Path:
    writer = LogWriter(path, metadata, tables)
    for rank, said in (records or {}).items():
        writer.record(rank, said)
    for begin in range(0, len(rows), chunk or max(1, len(rows))):
        writer.append(rows[begin : begin + (chunk or len(rows))])
    writer.close(trailer)
    return path


def small_run(ranks: int = 2, steps: int = 3, profiler: bool = True, optimizer: bool = True) -> FakeRun:
    """A data-parallel run of which every number can be computed by head. Per rank and step of 1 ms,
    from its begin t in us: gemm [100, 300] and [400, 600] on stream 0, all-reduce [300, 500] on stream 1
    (the second rank arrives 50 later), a copy to the host [650, 700], events between the streams.
    compute 400, communication 200 (150 on later ranks), overlapped 100, copy 50, idle 450 (500)."""
    run = FakeRun()
    gemm = run.price("gemm", "measured", 2e11, bytes=3e6, main_part=0)
    half = run.price("gemm", "interpolated", 2e11, bytes=3e6, main_part=0)
    reduce = run.price("communication", "analytic", algorithm="ring/simple")
    mm = run.signature("aten::mm", "bf16[4096,4096], bf16[4096,14336]")
    copy = run.signature("aten::_to_copy", "f32[]")
    ring = run.signature("ranks", f"0-{ranks - 1}")
    us = 1000
    for rank in range(ranks):
        run.add(Kind.COMMUNICATOR, rank, 5 * us, 5 * us, "default_pg", comm=0, sig=ring)
        for k in range(steps):
            t = (10_000 + k * 1000) * us

            def kernel(
                op_at: int, start: int, end: int, price: int, thread: int = 0, t: int = t, rank: int = rank
            ) -> None:
                op = run.add(Kind.OPERATOR, rank, t + op_at * us, t + (op_at + 12) * us, sig=mm, stream=thread)
                run.add(
                    Kind.KERNEL,
                    rank,
                    t + start * us,
                    t + end * us,
                    '{"lib":"cublas","call":"gemm","name":"nvjet_tn"}',
                    stream=0,
                    launch=t + (op_at + 4) * us,
                    link=op,
                    sig=mm,
                    price=price,
                )

            late = 50 * (rank > 0)
            kernel(10, 100, 300, gemm)
            mark = run.add(Kind.RECORD, rank, t + 300 * us, t + 300 * us, stream=0, launch=t + 25 * us)
            run.add(Kind.WAIT, rank, t + 200 * us, t + 300 * us, stream=1, launch=t + 30 * us, link=mark)
            op = run.add(Kind.OPERATOR, rank, t + 36 * us, t + 50 * us, "c10d::allreduce_", stream=0)
            run.add(
                Kind.COLLECTIVE,
                rank,
                t + (300 + late) * us,
                t + 500 * us,
                "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
                stream=1,
                launch=t + 40 * us,
                ready=t + 350 * us,
                link=op,
                comm=0,
                seq=k,
                bytes=1 << 20,
                price=reduce,
                sub=layout.Coll.ALL_REDUCE,
            )
            kernel(60, 400, 600, half, thread=1)
            move = run.add(
                Kind.MEMCPY,
                rank,
                t + 650 * us,
                t + 700 * us,
                stream=0,
                launch=t + 80 * us,
                bytes=4,
                sig=copy,
                sub=layout.Copy.D2H_PAGEABLE,
            )
            run.add(Kind.SYNC, rank, t + 110 * us, t + 705 * us, "cudaStreamSynchronize", link=move)
            for at, value in ((15, 1 << 30), (45, 3 << 30), (720, 1 << 29)):
                run.add(Kind.MEMORY, rank, t + at * us, t + at * us, value=value, bytes=4 << 30)
            if optimizer:
                run.add(Kind.ANNOTATION, rank, t + 720 * us, t + 990 * us, "Optimizer.step#AdamW.step")
            if profiler:
                run.add(Kind.ANNOTATION, rank, t, t + 1000 * us, f"ProfilerStep#{k + 1}")
    return run


def large_rows(count: int, ranks: int = 8, seed: int = 0) -> tuple[Tables, Rows]:
    """About `count` rows as a training run has them: operators, kernels on two streams, collectives,
    memory. Made with NumPy, for speed."""
    rng = np.random.default_rng(seed)
    names = [f"void at::native::vectorized_elementwise_kernel<4, Functor_{i}<float>>(int, bf16)" for i in range(200)]
    collective = len(names)
    names.append("ncclDevKernel_AllReduce_Sum_bf16_RING_LL")
    signatures = [(f"aten::op_{i % 60}", f"bf16[{i},4096], bf16[4096,{i}]") for i in range(400)]
    prices = [
        PriceRow(
            "gemm" if i % 2 else "elementwise",
            ("measured", "interpolated", "analytic")[i % 3],
            flops=1e9 * i,
            bytes=1e6,
            main_part=0,
        )
        for i in range(400)
    ]
    tables = Tables(names, signatures, prices)
    each = count // (ranks * 5)
    parts = []
    for rank in range(ranks):
        step = np.cumsum(rng.integers(5_000, 20_000, each))
        op, kernel, comm, memory, second = (np.zeros(each, ROW) for _ in range(5))
        for i, part in enumerate((op, kernel, comm, memory, second)):
            part["rank"], part["id"] = rank, np.arange(each) * 5 + i
            for column in ABSENT:
                part[column] = -1
        sig = rng.integers(0, 400, each)
        op["kind"], op["start"], op["end"], op["sig"] = Kind.OPERATOR, step, step + 4_000, sig
        for i, part in enumerate((kernel, second)):
            part["kind"], part["name"], part["sig"], part["price"] = (Kind.KERNEL, rng.integers(0, 200, each), sig, sig)
            part["launch"], part["link"], part["part"] = step + 1_000 * (i + 1), op["id"], i
            part["start"] = step + 2_500 * (i + 1)
            part["end"] = part["start"] + rng.integers(500, 2_500, each)
        comm["kind"], comm["name"], comm["stream"], comm["comm"] = Kind.COLLECTIVE, collective, 7, 0
        comm["start"], comm["end"], comm["launch"] = step + 500, step + 5_000, step + 200
        comm["ready"], comm["seq"], comm["bytes"], comm["price"] = step + 900, np.arange(each), 1 << 20, 0
        memory["kind"], memory["start"], memory["end"] = Kind.MEMORY, step, step
        memory["value"], memory["bytes"] = rng.integers(1 << 30, 2 << 30, each), 3 << 30
        parts += [op, kernel, comm, memory, second]
    rows = np.concatenate(parts)
    return tables, rows[np.lexsort((rows["id"], rows["rank"], rows["end"]))]

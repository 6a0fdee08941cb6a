"""A log of many ranks and events, regular as training is: what the readers of logs are timed with.

    python -m benchmarks.large_log PATH [EVENTS] [RANKS] [STEPS]

Per step every rank runs layers: an operator launches two kernels on the compute stream; the first is
recorded and awaited by the communication stream, where an all-reduce over all ranks runs next to the second;
the allocator hands out a block and takes one back. A step ends with the optimizer and a wait of the
host. Rank 1 is slower by a few per cent, so that others wait for it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from phantora.trace.schema import PriceRow, RunMetadata, Tables
from phantora.trace.writer import ROW, LogWriter
from tests.support.fakelog import Kind

US = 1000
LAYER = 115 * US  # on the GPU: the transfer, which waits for rank 1, ends last
HOST_LAYER = 60 * US
_PER_LAYER = (
    Kind.OPERATOR,
    Kind.MEMORY,
    Kind.KERNEL,
    Kind.RECORD,
    Kind.WAIT,
    Kind.COLLECTIVE,
    Kind.RECORD,
    Kind.KERNEL,
    Kind.MEMORY,
    Kind.WAIT,
)
NAMES = [
    *(f"void at::native::vectorized_elementwise_kernel<4, Functor_{i}<float>>(int, bf16)" for i in range(200)),
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
    "Optimizer.step#AdamW.step",
    "cudaStreamSynchronize",
    "default_pg",
]
_COLLECTIVE, _OPTIMIZER, _SYNC, _GROUP = range(200, 204)


def _layers(count: int, scale: float, ready: npt.NDArray[np.int64] | None) -> npt.NDArray[np.void]:
    """One rank's rows of one step, times from the step's begin."""
    rows = np.zeros((count, len(_PER_LAYER)), ROW)
    layer = np.arange(count)
    gpu, host = 20 * US + layer * LAYER, layer * HOST_LAYER
    for column in ("name", "sig", "price", "comm", "launch", "ready", "link", "seq"):
        rows[column] = -1
    for i, kind in enumerate(_PER_LAYER):
        rows["kind"][:, i] = kind
    sig = (layer * 7) % 400
    first, second = int(50 * US * scale), 60 * US

    def put(i: int, start: object, end: object, **columns: object) -> None:
        rows["start"][:, i], rows["end"][:, i] = start, end
        for name, value in columns.items():
            rows[name][:, i] = value

    ids = layer * len(_PER_LAYER)
    rows["id"] = ids[:, None] + np.arange(len(_PER_LAYER))
    mid = gpu + first
    begin = mid
    put(0, host, host + 40 * US, sig=sig)
    put(1, host + 1 * US, host + 1 * US, value=(8 << 30) + (layer << 20), bytes=64 << 30)
    put(2, gpu, mid, name=layer % 200, sig=sig, price=sig, launch=host + 2 * US, link=ids, stream=0)
    put(3, mid, mid, stream=0, launch=host + 8 * US)
    put(4, gpu, mid, stream=7, launch=host + 10 * US, link=ids + 3)
    arrived = mid if ready is None else ready
    put(
        5,
        mid,
        arrived + 60 * US,
        name=_COLLECTIVE,
        stream=7,
        launch=host + 12 * US,
        ready=arrived,
        link=ids,
        comm=0,
        seq=layer,
        bytes=1 << 26,
        price=400,
    )
    put(6, arrived + 60 * US, arrived + 60 * US, stream=7, launch=host + 20 * US)
    put(7, begin, begin + second, name=(layer * 3) % 200, sig=sig, price=sig, part=1, launch=host + 24 * US, link=ids)
    put(8, host + 30 * US, host + 30 * US, value=(8 << 30) + (layer << 20), bytes=64 << 30, sub=1)
    put(9, begin + second, arrived + 60 * US, stream=0, launch=host + 35 * US, link=ids + 6)
    rows["end"][:, 9] = np.maximum(rows["start"][:, 9], rows["end"][:, 9])
    return rows.reshape(-1)


def _step(step: int, ranks: int, layers: int) -> npt.NDArray[np.void]:
    """The rows of all ranks of one step, ordered as a log is."""
    length = layers * LAYER + 100 * US
    slow = _layers(layers, 1.1, None)
    plain = _layers(layers, 1.0, slow["start"][5 :: len(_PER_LAYER)])
    parts = []
    for rank in range(ranks):
        rows = (slow if rank == 1 else plain).copy()
        base = len(rows) + 2
        ends = np.zeros(2, ROW)
        for column in ("name", "sig", "price", "comm", "launch", "ready", "link", "seq"):
            ends[column] = -1
        last = int(rows["end"].max())
        ends["kind"] = Kind.SYNC, Kind.ANNOTATION
        ends["name"] = _SYNC, _OPTIMIZER
        ends["start"] = layers * HOST_LAYER, last + 10 * US
        ends["end"] = last, last + 50 * US
        ends["id"] = len(rows), len(rows) + 1
        ends["link"] = int(rows["id"][np.argmax(rows["end"])]), -1
        rows = np.concatenate([rows, ends])
        rows["rank"] = rank
        for column in ("start", "end", "launch", "ready"):
            rows[column] = np.where(rows[column] >= 0, rows[column] + step * length, -1)
        rows["id"] += 1 + step * base
        rows["link"] = np.where(rows["link"] >= 0, rows["link"] + 1 + step * base, -1)
        rows["seq"] = np.where(rows["seq"] >= 0, rows["seq"] + step * layers, -1)
        parts.append(rows)
    whole = np.concatenate(parts)
    return whole[np.lexsort((whole["id"], whole["rank"], whole["end"]))]


def described(ranks: int) -> tuple[RunMetadata, Tables, npt.NDArray[np.void]]:
    """The run, its tables, and the rows that name its group."""
    signatures = [(f"aten::op_{i % 60}", f"bf16[{i},4096], bf16[4096,{i}]") for i in range(400)]
    signatures.append(("ranks", ",".join(map(str, range(ranks)))))
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
    prices.append(PriceRow("communication", "scaled", algorithm="RING/SIMPLE/24"))
    group = np.zeros(ranks, ROW)
    for column in ("name", "sig", "price", "comm", "launch", "ready", "link", "seq"):
        group[column] = -1
    group["kind"], group["rank"], group["id"], group["name"] = Kind.COMMUNICATOR, np.arange(ranks), -2, _GROUP
    group["comm"], group["sig"] = 0, 400
    metadata = RunMetadata(
        phantora="benchmark",
        cluster=f"{max(1, ranks // 8)}x8xH100",
        gpu="H100",
        world_size=ranks,
        ranks_per_host=min(8, ranks),
        peak_flops={"bfloat16": 989e12},
        memory_bytes=80 << 30,
    )
    return metadata, Tables(NAMES, signatures, prices), group


def write(path: Path, count: int, ranks: int = 64, steps: int = 10) -> int:
    """Writes the log, step by step, and returns its number of rows, about `count`."""
    layers = max(1, count // (ranks * steps * len(_PER_LAYER)))
    metadata, tables, group = described(ranks)
    with LogWriter(path, metadata, tables) as log:
        log.append(group)
        for step in range(steps):
            rows = _step(step, ranks, layers)
            for begin in range(0, len(rows), 65_536):
                log.append(rows[begin : begin + 65_536])
        return log.rows


if __name__ == "__main__":
    print(write(Path(sys.argv[1]), *(int(argument) for argument in sys.argv[2:])), "rows")

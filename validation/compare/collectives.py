"""Compares the model of collectives with measurements.

    python -m validation.compare.collectives [--all] [--cluster 1x4xH200]

Measured are device times on 4 H200 (``nccl_graph.parquet``), and times seen by the host where there are no device
times (``nccl.parquet``: 16 MiB and more, where the host's part is below 2 %). Exits with 1 when the target is
missed: median
error 5 %, largest 15 %.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass

from phantora.hardware import load_cluster
from phantora.sim.collectives import CollectiveModel, CollectivePrice
from phantora.wire.layout import NCCL_DTYPE_NAMES, Coll
from validation.data import rows

TARGET_MEDIAN, TARGET_LARGEST = 0.05, 0.15
HOST_TIMES_FROM = 16 << 20
BFLOAT16 = NCCL_DTYPE_NAMES.index("bfloat16")


@dataclass(frozen=True)
class Sample:
    op: str
    members: int
    bytes: int
    us: float


def read() -> list[Sample]:
    """Every sample once, device times first."""
    found: dict[tuple[str, int, int], Sample] = {}
    for name, key, least in (("nccl_graph", "us", 0), ("nccl", "op_us", HOST_TIMES_FROM)):
        for row in rows(f"2026-11-22-h200x4/{name}.parquet"):
            if "op" in row and row["bytes"] >= least:
                sample = Sample(row["op"], row["world_size"], row["bytes"], row[key])
                found.setdefault((sample.op, sample.members, sample.bytes), sample)
    return list(found.values())


def predict(model: CollectiveModel, sample: Sample) -> CollectivePrice:
    if sample.op == "sendrecv_ring":
        return model.transfer(0, 1, sample.bytes, 1, members=sample.members, duplex=True)
    if sample.op == "send_0_to_1":  # torch makes a communicator of two for it
        return model.transfer(0, 1, sample.bytes, 1)
    kind = getattr(Coll, sample.op.upper())
    return model.collective(kind, tuple(range(sample.members)), sample.bytes, BFLOAT16)


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--cluster", default="1x4xH200")
    parser.add_argument("--all", action="store_true", help="print every size")
    arguments = parser.parse_args()
    model = CollectiveModel(load_cluster(arguments.cluster))
    errors: dict[tuple[str, int], list[float]] = defaultdict(list)
    for sample in read():
        price = predict(model, sample)
        error = price.duration_ns / 1e3 / sample.us - 1
        errors[sample.op, sample.members].append(error)
        if arguments.all:
            print(
                f"{sample.op:16} {sample.members} {sample.bytes / 1024:9.0f} KiB {sample.us:9.1f} us "
                f"{price.duration_ns / 1e3:9.1f} {error:+7.1%}  "
                f"{price.algorithm} {price.protocol} {price.channels}"
            )
    print("| operation | GPUs | sizes | median error | largest | mean |")
    print("| --- | --- | --- | --- | --- | --- |")
    everything: list[float] = []
    for (op, members), values in sorted(errors.items()):
        sizes = [abs(value) for value in values]
        everything += sizes
        print(
            f"| {op} | {members} | {len(values)} | {statistics.median(sizes):.1%} | {max(sizes):.1%} "
            f"| {statistics.mean(values):+.1%} |"
        )
    median, largest = statistics.median(everything), max(everything)
    print(f"| all | | {len(everything)} | {median:.1%} | {largest:.1%} | |")
    return int(median > TARGET_MEDIAN or largest > TARGET_LARGEST)


if __name__ == "__main__":
    sys.exit(main())

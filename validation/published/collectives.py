"""Published nccl-tests results of systems with several hosts, next to the model.

    python -m validation.published.collectives [--all] [--rows FILE]

``validation/published/nccl.json`` contains the results with their sources. None of them was measured by us. The time
that reduction in the switch takes to run at full rate, its rate, and the latency of LL between hosts were
set with three of them (docs/accuracy.md); nothing is known of the fabrics, which count as one switch that blocks
nothing. `--rows` takes the samples of a file of JSON lines instead: rows with `metric` "busbw GB/s", `model` such as
"all_reduce 64 MiB", `gpus`, `gpu`, `hosts`, `value`, `source`. `bytes` counts as nccl-tests does; bandwidths are bus
bandwidths in GB/s.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass, field, replace
from pathlib import Path

from phantora.hardware import Link, load_cluster
from phantora.sim.collectives import CollectiveModel, CollectivePrice, NcclEnvironment
from phantora.sim.collectives.tuner import wire_share
from phantora.wire.layout import NCCL_DTYPE_NAMES, Coll

DATA = Path(__file__).with_name("nccl.json")
FLOAT32 = NCCL_DTYPE_NAMES.index("float32")
LARGE = 256 << 20


@dataclass(frozen=True)
class Published:
    system: str
    op: str
    hosts: int
    gpus_per_host: int
    gpu: str
    nic_gbps: float
    samples: list[tuple[int, float]]
    """Bytes and microseconds."""
    source: str
    fabric: str = "not reported"
    nics: int = 0
    pcie_gbps: float = 0.0
    """PCIe rate, if it differs from the GPU file's."""
    latency_ns: int = 0
    """Between GPUs of two hosts, where it is not the default: set so that the smallest sample agrees."""
    environment: dict[str, str] = field(default_factory=dict)
    cluster: str = ""
    """Name of a cluster that has the hosts' links."""

    @property
    def members(self) -> int:
        return self.hosts * self.gpus_per_host

    def model(self) -> CollectiveModel:
        if self.cluster:
            return CollectiveModel(load_cluster(self.cluster), NcclEnvironment.read(self.environment))
        cluster = load_cluster(f"{self.hosts}x{self.gpus_per_host}x{self.gpu}")
        nics = self.nics or self.gpus_per_host
        if self.pcie_gbps:
            cluster = replace(cluster, gpu=replace(cluster.gpu, pcie_bandwidth=self.pcie_gbps / 8 * 1e9))
        cluster = replace(
            cluster,
            inter=Link(self.nic_gbps / 8 * 1e9, self.latency_ns or cluster.inter.latency_ns),
            wiring=replace(cluster.wiring, nics=nics, gpus_per_pcie_switch=self.gpus_per_host // nics),
        )
        return CollectiveModel(cluster, NcclEnvironment.read(self.environment))

    def predict(self, model: CollectiveModel, bytes: int) -> CollectivePrice:
        return model.collective(getattr(Coll, self.op.upper()), tuple(range(self.members)), bytes, FLOAT32)


def read_rows(path: Path) -> list[Published]:
    """The rows of bandwidths in `path`, a system per source and number of hosts; NICs are those of the GPU's file."""
    series: dict[tuple[str, str, int, int, str], list[tuple[int, float]]] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if row["metric"] != "busbw GB/s":
            continue
        operation, number, unit = row["model"].split()
        bytes = int(float(number) * {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit])
        share = wire_share(getattr(Coll, operation.upper()), row["gpus"])
        key = row["source"], operation, row["hosts"], row["gpus"], row["gpu"]
        series.setdefault(key, []).append((bytes, share * bytes / row["value"] / 1e3))
    return [
        Published(f"{source}, {hosts} hosts", operation, hosts, gpus // hosts, gpu, 400, samples, source)
        for (source, operation, hosts, gpus, gpu), samples in series.items()
    ]


def read() -> list[Published]:
    return [Published(**entry) for entry in json.loads(DATA.read_text())]


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--all", action="store_true", help="every size, not only the largest")
    parser.add_argument("--rows", type=Path, help="a file of JSON lines with other samples")
    arguments = parser.parse_args()
    errors: dict[tuple[str, bool], list[float]] = {}
    print("| system | operation | size | published | ours | difference | ours by |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for entry in read_rows(arguments.rows) if arguments.rows else read():
        model = entry.model()
        factor = wire_share(getattr(Coll, entry.op.upper()), entry.members)
        for bytes, us in entry.samples:
            price = entry.predict(model, bytes)
            bus = factor * bytes / us / 1e3
            ours = factor * bytes / price.duration_ns
            errors.setdefault((entry.fabric, bytes >= LARGE), []).append(abs(ours / bus - 1))
            if arguments.all or bytes == entry.samples[-1][0]:
                size = f"{bytes / (1 << 20):.0f} MiB" if bytes >= 1 << 20 else f"{bytes / 1024:.0f} KiB"
                print(
                    f"| {entry.system} | {entry.op} | {size} | {bus:.1f} | {ours:.1f} | {ours / bus - 1:+.0%} "
                    f"| {price.algorithm} {price.protocol} |"
                )
    print("\n| fabric | size | samples | median error | mean | largest |")
    print("| --- | --- | --- | --- | --- | --- |")
    for (fabric, large), found in sorted(errors.items()):
        size = "from 256 MiB on" if large else "smaller"
        median, mean = statistics.median(found), statistics.fmean(found)
        print(f"| {fabric} | {size} | {len(found)} | {median:.0%} | {mean:.0%} | {max(found):.0%} |")


if __name__ == "__main__":
    main()

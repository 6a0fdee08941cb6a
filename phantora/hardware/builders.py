"""Builds the topology of a cluster: what is inside its hosts, and the fabric between them."""

from __future__ import annotations

from collections.abc import Iterator

from phantora.hardware.topology import Topology, Wire
from phantora.hardware.types import Cluster

# Payload that a link carries, as a share of its raw rate.
NVLINK_SHARE = 0.7756  # 370.8 of 478.1 GB/s, one way, measured on H200; NCCL's figure for sm_90 is 18 x 20.6
PCIE_SHARE = 0.75  # not measured: every GPU sends and receives through the host bridge
NETWORK_SHARE = 0.97  # 400 Gb/s InfiniBand: 48.5 GB/s of payload; not measured


def build(cluster: Cluster) -> Topology:
    """The topology of `cluster`: GPU r is rank r."""
    gpus = [f"h{host}.gpu{gpu}" for host in range(cluster.hosts) for gpu in range(cluster.gpus_per_host)]
    return Topology(gpus, _wires(cluster))


def _wires(cluster: Cluster) -> Iterator[Wire]:
    nvlink = cluster.gpu.nvlink_bandwidth > 0
    inside = cluster.intra.bandwidth * (NVLINK_SHARE if nvlink else PCIE_SHARE)
    outside = cluster.inter.bandwidth * NETWORK_SHARE
    for host in range(cluster.hosts):
        for gpu in range(cluster.gpus_per_host):
            name = f"h{host}.gpu{gpu}"
            switch = f"h{host}.{'nvswitch' if nvlink else 'pcie'}"
            yield Wire(name, switch, inside, cluster.intra.latency_ns // 2)
            if cluster.hosts > 1:
                nic = f"h{host}.nic{gpu}"
                yield Wire(name, nic, max(cluster.gpu.pcie_bandwidth * PCIE_SHARE, outside), 0)
                yield Wire(nic, "fabric", outside, cluster.inter.latency_ns // 2)

"""Builds the topology of a cluster: what is inside its hosts, and the fabric between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import combinations

from phantora.hardware.topology import Connection, Topology
from phantora.hardware.types import Cluster

# Payload that a link carries, as a share of its raw rate.
NVLINK_SHARE = 0.7756  # 370.8 of 478.1 GB/s, one way, measured on H200; NCCL's figure for sm_90 is 18 x 20.6
NETWORK_SHARE = 0.97  # 400 Gb/s InfiniBand: 48.5 GB/s of payload; not measured
# PCIe packets carry 256 bytes of payload with 24 to 28 of headers; measured 55.5 of 63 GB/s on H200.
PCIE_SHARE = 0.881
SWITCH = "switch"


def build(cluster: Cluster, pxn: bool = True) -> Topology:
    """The topology of `cluster`; GPUs are numbered host by host. `pxn`: see `Topology`. What NVLink joins is one host
    of the topology.

    Raises PhantoraError for a fabric that cannot be built.
    """
    cluster = cluster.domains()
    nics, gpus = cluster.wiring.nics, cluster.gpus_per_host
    return Topology(
        cluster.hosts,
        _inside(cluster),
        FABRICS[cluster.fabric.kind](cluster) if cluster.hosts > 1 else (),
        [gpu * nics // gpus for gpu in range(gpus)] if nics < gpus else range(gpus),
        cluster.fabric.seed,
        cluster.fabric.routing == "adaptive",
        pxn,
        {host: _inside(cluster.parts[kind]) for host in range(cluster.hosts) if (kind := cluster.kind_of(host))},
    )


# ---------------------------------------------------------------------- inside a host


def _inside(cluster: Cluster) -> Iterator[Connection]:
    wiring, gpus, gpu = cluster.wiring, cluster.gpus_per_host, cluster.gpu
    half = cluster.intra.latency_ns // 2
    if wiring.kind == "nvswitch":
        for index in range(gpus):
            yield Connection(f"gpu{index}", "nvswitch", cluster.intra.bandwidth * NVLINK_SHARE, half)
    elif wiring.kind == "nvlink-pairs":
        for index in range(0, gpus - 1, 2):
            bandwidth = cluster.intra.bandwidth * NVLINK_SHARE
            yield Connection(f"gpu{index}", f"gpu{index + 1}", bandwidth, cluster.intra.latency_ns)
    # A PCIe host's [intra] is its GPUs' PCIe link, already without headers.
    port = cluster.intra.bandwidth if wiring.kind == "pcie" else gpu.pcie_bandwidth * PCIE_SHARE
    hop = half if wiring.kind == "pcie" else 0  # else part of the network's latency, or of NVLink's
    nics = min(wiring.nics, gpus)
    switches = math.ceil(gpus / wiring.gpus_per_pcie_switch)
    sockets = min(wiring.sockets * wiring.nvlink_hosts, switches)
    for index in range(gpus):
        yield Connection(f"gpu{index}", f"pcie{index // wiring.gpus_per_pcie_switch}", port, hop)
    for nic in range(nics):
        first = math.ceil(nic * gpus / nics)  # the first GPU that it serves
        rate = max(port, _nic_rate(cluster))
        yield Connection(f"nic{nic}", f"pcie{first // wiring.gpus_per_pcie_switch}", rate, 0)
    for switch in range(switches):
        yield Connection(f"pcie{switch}", f"cpu{switch * sockets // switches}", port, 0)
    here = max(1, sockets // wiring.nvlink_hosts)  # CPUs of one host
    for one, other in combinations(range(sockets), 2):
        if one // here == other // here:
            yield Connection(f"cpu{one}", f"cpu{other}", wiring.socket_bandwidth, 0)


# ---------------------------------------------------------------------- between hosts


def _nic_rate(cluster: Cluster) -> float:
    return cluster.inter.bandwidth * NETWORK_SHARE


def _nics(cluster: Cluster) -> int:
    return min(cluster.wiring.nics, cluster.gpus_per_host)


def _port(cluster: Cluster, host: int, nic: int, switch: str) -> Connection:
    own = cluster.parts[cluster.kind_of(host)]
    return Connection(f"h{host}.nic{nic}", switch, _nic_rate(own), own.inter.latency_ns // 2)


def _one_switch(cluster: Cluster) -> Iterator[Connection]:
    for host in range(cluster.hosts):
        for nic in range(_nics(cluster)):
            yield _port(cluster, host, nic, SWITCH)


def _upwards(cluster: Cluster, ports: int) -> tuple[int, float]:
    """Switches above a leaf with `ports` ports below, and the rate of its link to each."""
    fabric = cluster.fabric
    spines = fabric.spines or max(1, round(ports / fabric.oversubscription))
    return spines, ports * _nic_rate(cluster) / fabric.oversubscription / spines


def _to_leaves(cluster: Cluster, below: int) -> Iterator[Connection]:
    """All NICs of a host on the leaf of its group of `below` hosts."""
    for host in range(cluster.hosts):
        for nic in range(_nics(cluster)):
            yield _port(cluster, host, nic, f"leaf{host // below}")


def _leaf_spine(cluster: Cluster) -> Iterator[Connection]:
    """Hosts in groups, all NICs of a host on its group's leaf; every leaf joined to every spine."""
    below = cluster.fabric.hosts_per_leaf or 4
    leaves = math.ceil(cluster.hosts / below)
    yield from _to_leaves(cluster, below)
    spines, rate = _upwards(cluster, below * _nics(cluster))
    for leaf in range(leaves):
        for spine in range(spines):
            yield Connection(f"leaf{leaf}", f"spine{spine}", rate, cluster.fabric.hop_latency_ns)


def _rail(cluster: Cluster) -> Iterator[Connection]:
    """NIC r of every host of a group on the group's leaf r; spines join all leaves."""
    below = cluster.fabric.hosts_per_leaf or 32
    nics, groups = _nics(cluster), math.ceil(cluster.hosts / below)
    for host in range(cluster.hosts):
        for nic in range(nics):
            yield _port(cluster, host, nic, f"leaf{host // below}.{nic}")
    if groups * nics == 1:
        return
    spines, rate = _upwards(cluster, min(below, cluster.hosts))
    for group in range(groups):
        for nic in range(nics):
            for spine in range(spines):
                yield Connection(f"leaf{group}.{nic}", f"spine{spine}", rate, cluster.fabric.hop_latency_ns)


def _fat_tree(cluster: Cluster) -> Iterator[Connection]:
    """Leaves and their spines in pods; spine s of every pod joined to the cores of plane s."""
    fabric = cluster.fabric
    below = fabric.hosts_per_leaf or 4
    leaves = math.ceil(cluster.hosts / below)
    yield from _to_leaves(cluster, below)
    spines, rate = _upwards(cluster, below * _nics(cluster))
    for leaf in range(leaves):
        for spine in range(spines):
            pod = leaf // fabric.leaves_per_pod
            yield Connection(f"leaf{leaf}", f"pod{pod}.spine{spine}", rate, fabric.hop_latency_ns)
    pods = math.ceil(leaves / fabric.leaves_per_pod)
    if pods == 1:
        return
    for pod in range(pods):
        for spine in range(spines):
            for core in range(fabric.leaves_per_pod):
                yield Connection(f"pod{pod}.spine{spine}", f"core{spine}.{core}", rate, fabric.hop_latency_ns)


def _dragonfly(cluster: Cluster) -> Iterator[Connection]:
    """Routers with hosts below, all of a group joined to each other, and one link between any two groups."""
    fabric = cluster.fabric
    below, width = fabric.hosts_per_leaf or 4, fabric.leaves_per_pod
    routers = math.ceil(cluster.hosts / below)
    groups = math.ceil(routers / width)
    for host in range(cluster.hosts):
        for nic in range(_nics(cluster)):
            yield _port(cluster, host, nic, f"router{host // below}")
    injected = below * _nics(cluster) * _nic_rate(cluster) / fabric.oversubscription
    for group in range(groups):
        members = range(group * width, min(routers, (group + 1) * width))
        for one, other in combinations(members, 2):
            yield Connection(f"router{one}", f"router{other}", injected, fabric.hop_latency_ns)
    for one, other in combinations(range(groups), 2):
        ends = [
            f"router{here * width + there % min(width, routers - here * width)}"
            for here, there in ((one, other), (other, one))
        ]
        yield Connection(ends[0], ends[1], injected * width / (groups - 1), fabric.hop_latency_ns)


def _graph(cluster: Cluster) -> Iterator[Connection]:
    for link in cluster.fabric.links:
        yield Connection(*link.ends, link.bandwidth * NETWORK_SHARE, link.latency_ns, link.one_way)


FABRICS: dict[str, Callable[[Cluster], Iterator[Connection]]] = {
    "switch": _one_switch,
    "rail": _rail,
    "leaf-spine": _leaf_spine,
    "fat-tree": _fat_tree,
    "dragonfly": _dragonfly,
    "graph": _graph,
}

"""The wires of a cluster: directed links, and the route of a flow over them.

A link's bandwidth is what it carries of payload, bytes/s in its direction: the raw rate less headers
and protocol. So rates of flows that share a link add up to it, whoever they belong to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import networkx as nx

from phantora.errors import PhantoraError


@dataclass(frozen=True)
class NetworkLink:
    """One direction of a wire. Its id is its index in `Topology.links`."""

    name: str
    """``h0.gpu3>h0.nvswitch``: from where to where."""
    source: str
    target: str
    bandwidth: float
    """Payload, bytes/s."""
    latency_ns: int


@dataclass(frozen=True, slots=True)
class Flow:
    """`count` equal flows of one collective or transfer over the same links."""

    src: int
    """GPU, counted over the hosts; -1: several."""
    dst: int
    links: tuple[int, ...]
    """Ids of the links in the order of travel, each once."""
    bytes: float
    """Payload of each of the `count` flows."""
    rate: float
    """Bytes/s that each of them never exceeds."""
    count: int = 1


class Wire(NamedTuple):
    """A cable between nodes `a` and `b`: one link each way."""

    a: str
    b: str
    bandwidth: float
    latency_ns: int


class Topology:
    """Directed links between GPUs, switches and NICs, and routes over them.

    `gpus` are node names in rank order. Routes have the fewest hops; among equal ones the flow's hash
    (`seed`, source, target, key) decides at every switch, as ECMP does. A GPU passes nothing on.
    """

    def __init__(self, gpus: Iterable[str], wires: Iterable[Wire], seed: int = 0) -> None:
        self.gpus = tuple(gpus)
        self.graph = nx.DiGraph()
        links: list[NetworkLink] = []
        for wire in wires:
            for source, target in ((wire.a, wire.b), (wire.b, wire.a)):
                self.graph.add_edge(source, target, link=len(links))
                links.append(NetworkLink(f"{source}>{target}", source, target, wire.bandwidth, wire.latency_ns))
        self.links = tuple(links)
        self.seed = seed
        self._gpus = frozenset(self.gpus)
        self._hops: dict[str, dict[str, int]] = {}
        self._routes: dict[tuple[int, int, int], tuple[int, ...]] = {}

    def route(self, src_gpu: int, dst_gpu: int, key: int = 0) -> tuple[int, ...]:
        """Links from one GPU to another, for the flow `key` (a channel, say) between them.

        Raises PhantoraError if there is no way.
        """
        found = self._routes.get((src_gpu, dst_gpu, key))
        if found is None:
            found = self._routes[src_gpu, dst_gpu, key] = self._find(src_gpu, dst_gpu, key)
        return found

    def _find(self, src: int, dst: int, key: int) -> tuple[int, ...]:
        node, target = self.gpus[src], self.gpus[dst]
        hops = self._distances(target)
        if node not in hops:
            raise PhantoraError(f"no way from {node} to {target} in the cluster's network")
        route: list[int] = []
        while node != target:
            nearer = [n for n in self.graph.successors(node) if hops.get(n, len(hops)) == hops[node] - 1]
            choice = nearer[_hash(self.seed, src, dst, key, len(route)) % len(nearer)]
            route.append(self.graph.edges[node, choice]["link"])
            node = choice
        return tuple(route)

    def _distances(self, target: str) -> dict[str, int]:
        """Hops to `target` of every node from which it can be reached."""
        if target not in self._hops:
            hops, edge = {target: 0}, [target]
            while edge:
                further = []
                for node in edge:
                    for before in self.graph.predecessors(node):
                        if before not in hops:
                            hops[before] = hops[node] + 1
                            if before not in self._gpus:
                                further.append(before)
                edge = further
            self._hops[target] = hops
        return self._hops[target]


def _hash(*values: int) -> int:
    """SplitMix64's finaliser over `values`: equal in every process and on every machine."""
    mixed = 0x9E3779B97F4A7C15
    for value in values:
        mixed = (mixed ^ value) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 27
        mixed = mixed * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return mixed

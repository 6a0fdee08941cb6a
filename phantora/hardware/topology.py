"""The wires of a cluster: directed links, and the route of a flow over them.

A link's bandwidth is what it carries of payload, bytes/s in its direction: the raw rate less headers
and protocol. So the rates of flows that share a link add up to at most that, whoever they belong to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import networkx as nx

from phantora.errors import PhantoraError


@dataclass(frozen=True, slots=True)
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
    """A cable between nodes `a` and `b`: one link each way, or only from `a` to `b`."""

    a: str
    b: str
    bandwidth: float
    latency_ns: int
    one_way: bool = False


class Topology:
    """Directed links between GPUs, switches and NICs, and routes over them.

    Every host has the same `host_wires`, between nodes called ``gpu0``, ``nic0`` and whatever else
    (``nvswitch``, ``pcie0``, ``cpu0``); `fabric_wires` join NICs (``h3.nic0``) and switches. `nic_of`
    gives the NIC of each GPU of a host, its rail. GPU g of host h has number h x GPUs per host + g.

    Inside a host a flow takes the fastest way; GPUs and NICs pass nothing on. Between hosts it leaves
    through a NIC of the target's rail: the source's own, or, with `pxn`, the one of a neighbour that
    NVLink reaches; otherwise through its own. The fabric's ways with fewest hops are equal: at
    every switch the hash of (`seed`, both NICs, key) decides, as ECMP does, or with `adaptive` the
    link that has been given the fewest flows so far.
    """

    def __init__(
        self,
        hosts: int,
        host_wires: Iterable[Wire],
        fabric_wires: Iterable[Wire],
        nic_of: Sequence[int],
        seed: int = 0,
        adaptive: bool = False,
        pxn: bool = True,
    ) -> None:
        inside = tuple(host_wires)
        prefixed = (
            wire._replace(a=f"h{host}.{wire.a}", b=f"h{host}.{wire.b}") for host in range(hosts) for wire in inside
        )
        links: list[NetworkLink] = []
        for wire in (*prefixed, *fabric_wires):
            links.append(NetworkLink(f"{wire.a}>{wire.b}", wire.a, wire.b, wire.bandwidth, wire.latency_ns))
            if not wire.one_way:
                links.append(NetworkLink(f"{wire.b}>{wire.a}", wire.b, wire.a, wire.bandwidth, wire.latency_ns))
        self.links = tuple(links)
        self.hosts = hosts
        self.nic_of = tuple(nic_of)
        self.gpus = tuple(f"h{host}.gpu{gpu}" for host in range(hosts) for gpu in range(len(self.nic_of)))
        self.pxn = pxn
        self._seed, self._adaptive = seed, adaptive
        self._host_links = 2 * len(inside)
        self._host = _graph(links[: self._host_links])
        self._local: dict[tuple[str, str], tuple[int, ...]] = {}
        self._out: dict[str, list[tuple[int, str]]] = {}
        self._last: dict[str, dict[str, int]] = {}
        self._switches = nx.DiGraph()
        for number, link in enumerate(links[hosts * self._host_links :], hosts * self._host_links):
            if is_nic(link.target):
                self._last.setdefault(link.target, {})[link.source] = number
            else:
                self._out.setdefault(link.source, []).append((number, link.target))
                if not is_nic(link.source):
                    self._switches.add_edge(link.target, link.source)  # reversed: distances from a target
        self._hops: dict[frozenset[str], dict[str, int]] = {}
        self._ways: dict[tuple[str, frozenset[str]], list[tuple[int, str]]] = {}
        self._given = [0] * len(links)
        self._routes: dict[tuple[int, int, int, bool], tuple[int, ...]] = {}

    @property
    def graph(self) -> nx.DiGraph:
        """Every node and link; edges have `link`, the id."""
        return _graph(self.links)

    def host_of(self, gpu: int) -> int:
        return gpu // len(self.nic_of)

    def host_of_link(self, link: int) -> int | None:
        """The host whose GPUs alone use `link`: inside it, or at one of its NICs; None in the fabric."""
        if link < self.hosts * self._host_links:
            return link // self._host_links
        ends = (self.links[link].source, self.links[link].target)
        nic = next((end for end in ends if is_nic(end)), None)
        return int(nic[1:].partition(".")[0]) if nic else None

    def rail_of(self, gpu: int) -> int:
        """Number of the NIC, on its host, that GPU number `gpu` uses."""
        return self.nic_of[gpu % len(self.nic_of)]

    def route(self, src_gpu: int, dst_gpu: int, key: int = 0, direct: bool = False) -> tuple[int, ...]:
        """Ids of the links from one GPU to another, for the flow `key` (a channel, say) between them.

        `direct`: without PXN, as rings and trees go. Raises PhantoraError if there is no way.
        """
        found = self._routes.get((src_gpu, dst_gpu, key, direct))
        if found is None:
            found = self._find(src_gpu, dst_gpu, key, direct)
            self._routes[src_gpu, dst_gpu, key, direct] = found
        return found

    def latency_ns(self, route: tuple[int, ...]) -> int:
        """One way along `route`, ns."""
        return sum(self.links[link].latency_ns for link in route)

    def by_nvlink(self, src_gpu: int, dst_gpu: int) -> bool:
        """Does NVLink join two GPUs of one host, without PCIe?"""
        width = len(self.nic_of)
        way = self._inside(0, f"gpu{src_gpu % width}", f"gpu{dst_gpu % width}")
        return all(self.links[link].target.startswith(("h0.gpu", "h0.nvswitch")) for link in way)

    # ------------------------------------------------------------------ how routes are found

    def _find(self, src: int, dst: int, key: int, direct: bool) -> tuple[int, ...]:
        width = len(self.nic_of)
        (here, source), (there, target) = divmod(src, width), divmod(dst, width)
        if here == there:
            return self._inside(here, f"gpu{source}", f"gpu{target}")
        to_rail: tuple[int, ...] = ()
        rail = self.nic_of[target]
        if self.nic_of[source] != rail:
            door = None if direct else self._door(source, rail)
            if door is None:
                rail = self.nic_of[source]
            else:
                to_rail = self._inside(here, f"gpu{source}", f"gpu{door}")
                source = door
        return (
            *to_rail,
            *self._inside(here, f"gpu{source}", f"nic{rail}"),
            *self._across(f"h{here}.nic{rail}", f"h{there}.nic{self.nic_of[target]}", key),
            *self._inside(there, f"nic{self.nic_of[target]}", f"gpu{target}"),
        )

    def _door(self, source: int, rail: int) -> int | None:
        """The GPU beside `source` that owns `rail` and that NVLink reaches, if PXN is on."""
        if self.pxn:
            for gpu, nic in enumerate(self.nic_of):
                if nic == rail and self.by_nvlink(source, gpu):
                    return gpu
        return None

    def _inside(self, host: int, source: str, target: str) -> tuple[int, ...]:
        """The fastest way inside a host; hosts are alike, so host 0's, shifted."""
        found = self._local.get((source, target))
        if found is None:
            ends = {f"h0.{source}", f"h0.{target}"}
            passing = [n for n in self._host if n in ends or not n.startswith(("h0.gpu", "h0.nic"))]
            try:
                path = nx.shortest_path(self._host.subgraph(passing), f"h0.{source}", f"h0.{target}", weight="weight")
            except (nx.NetworkXNoPath, nx.NodeNotFound):
                raise PhantoraError(f"no way from {source} to {target} inside a host") from None
            found = tuple(self._host.edges[edge]["link"] for edge in nx.utils.pairwise(path))
            self._local[source, target] = found
        shift = host * self._host_links
        return tuple(link + shift for link in found)

    def _across(self, source: str, target: str, key: int) -> tuple[int, ...]:
        """From NIC to NIC through the fabric, hop by hop."""
        last = self._last.get(target, {})
        ends = frozenset(last)
        route: list[int] = []
        node = source
        while node not in last:
            equal = self._nearer(node, ends)
            if not equal:
                raise PhantoraError(f"no way from {source} to {target} in the cluster's fabric")
            if self._adaptive:
                link, node = min(equal, key=lambda way: self._given[way[0]])
            else:
                link, node = equal[_hash(self._seed, source, target, key, len(route)) % len(equal)]
            self._given[link] += 1
            route.append(link)
        return (*route, last[node])

    def _nearer(self, node: str, ends: frozenset[str]) -> list[tuple[int, str]]:
        """Links out of `node`, and where they lead, that begin a way of fewest hops to one of `ends`."""
        found = self._ways.get((node, ends))
        if found is None:
            hops = self._distances(ends)
            out = [way for way in self._out.get(node, ()) if way[1] in hops]
            least = min((hops[end] for _, end in out), default=0)
            found = self._ways[node, ends] = [way for way in out if hops[way[1]] == least]
        return found

    def _distances(self, ends: frozenset[str]) -> dict[str, int]:
        """Hops from every switch that reaches one of `ends` to the nearest of them."""
        if ends not in self._hops:
            known = [end for end in sorted(ends) if end in self._switches]
            hops = nx.multi_source_dijkstra_path_length(self._switches, known) if known else {}
            self._hops[ends] = {**dict.fromkeys(sorted(ends), 0), **hops}
        return self._hops[ends]


def is_nic(node: str) -> bool:
    """Is `node`, by its name, a NIC of some host?"""
    return node.startswith("h") and ".nic" in node


def _graph(links: Iterable[NetworkLink]) -> nx.DiGraph:
    graph = nx.DiGraph()
    for number, link in enumerate(links):
        graph.add_edge(link.source, link.target, link=number, weight=1 / link.bandwidth)
    return graph


def _hash(seed: int, source: str, target: str, key: int, hop: int) -> int:
    """Equal in every process and on every machine."""
    text = f"{seed} {source} {target} {key} {hop}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")

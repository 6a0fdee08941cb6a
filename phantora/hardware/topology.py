"""The links of a cluster, directed, and the route of a flow over them.

A link's bandwidth is what it carries of payload, bytes/s in its direction: the raw rate less headers
and protocol. So the rates of flows that share a link add up to at most that, whoever they belong to.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from phantora.errors import PhantoraError
from phantora.json_data import BytesPerSecond


@dataclass(frozen=True, slots=True)
class NetworkLink:
    """One direction of a connection. Its id is its index in `Topology.links`."""

    name: str
    """``h0.gpu3>h0.nvswitch``: from where to where."""
    source: str
    target: str
    bandwidth: BytesPerSecond
    """Payload, bytes/s."""
    latency_ns: int


@dataclass(
    slots=True, kw_only=True
)  # not frozen: a large collective makes thousands, and a frozen one takes four times as long
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


class Connection(NamedTuple):
    """Connection of nodes `a` and `b`: one link each way, or only from `a` to `b`."""

    a: str
    b: str
    bandwidth: float
    latency_ns: int
    one_way: bool = False


class Topology:
    """Directed links between GPUs, switches and NICs, and routes over them.

    Every host has the `host_connections`, or at other rates those of `others`,
    between nodes called ``gpu0``, ``nic0`` and whatever else
    (``nvswitch``, ``pcie0``, ``cpu0``); `fabric_connections` join NICs (``h3.nic0``) and switches. `nic_of`
    gives the NIC of each GPU of a host, its rail. GPU g of host h has number h x GPUs per host + g.

    Inside a host a flow takes the fastest way; GPUs and NICs pass nothing on. Between hosts it leaves
    through a NIC of the target's rail: the source's own, or, with `pxn`, the one of a neighbour that
    NVLink reaches; otherwise through its own. The fabric's ways with fewest hops are equal: at
    every switch the hash of (`seed`, both NICs, key) decides, as ECMP does, or with `adaptive` the
    link that has been given the fewest flows since :meth:`begin`; of equal ones the source's turn decides.
    """

    def __init__(
        self,
        hosts: int,
        host_connections: Iterable[Connection],
        fabric_connections: Iterable[Connection],
        nic_of: Sequence[int],
        seed: int = 0,
        adaptive: bool = False,
        pxn: bool = True,
        others: Mapping[int, Iterable[Connection]] | None = None,
    ) -> None:
        inside = tuple(host_connections)
        different = {host: tuple(found) for host, found in (others or {}).items()}
        prefixed = (
            each._replace(a=f"h{host}.{each.a}", b=f"h{host}.{each.b}")
            for host in range(hosts)
            for each in different.get(host, inside)
        )
        links: list[NetworkLink] = []
        for each in (*prefixed, *fabric_connections):
            links.append(NetworkLink(f"{each.a}>{each.b}", each.a, each.b, each.bandwidth, each.latency_ns))
            if not each.one_way:
                links.append(NetworkLink(f"{each.b}>{each.a}", each.b, each.a, each.bandwidth, each.latency_ns))
        self.links = tuple(links)
        self.bandwidths = np.array([link.bandwidth for link in links])
        """Bandwidths of `links`, bytes/s."""
        self.hosts = hosts
        self.nic_of = tuple(nic_of)
        self.gpus = tuple(f"h{host}.gpu{gpu}" for host in range(hosts) for gpu in range(len(self.nic_of)))
        self.pxn = pxn
        self._seed, self._adaptive = seed, adaptive
        self._host_links = 2 * len(inside)
        self._host: dict[str, list[tuple[int, str]]] = {}  # of host 0: links out of a node, and where they lead
        for number, link in enumerate(links[: self._host_links]):
            self._host.setdefault(link.source, []).append((number, link.target))
        self._local: dict[tuple[str, str], tuple[int, ...]] = {}
        self._shifted: dict[tuple[int, str, str], tuple[int, ...]] = {}
        self._out: dict[str, list[tuple[int, str]]] = {}
        self._last: dict[str, dict[str, int]] = {}
        self._before: dict[str, list[str]] = {}  # switches with a link to this one
        for number, link in enumerate(links[hosts * self._host_links :], hosts * self._host_links):
            if is_nic(link.target):
                self._last.setdefault(link.target, {})[link.source] = number
            else:
                self._out.setdefault(link.source, []).append((number, link.target))
                if not is_nic(link.source):
                    self._before.setdefault(link.target, []).append(link.source)
        self._hops: dict[frozenset[str], dict[str, int]] = {}
        self._ways: dict[tuple[str, frozenset[str]], list[tuple[int, str]]] = {}
        self._only: dict[tuple[str, str], tuple[int, ...]] = {}
        self._turn: dict[str, int] = {}  # number of a NIC among those of its switch: each begins with another way up
        ports: Counter[str] = Counter()
        for nic, switches in self._last.items():
            switch = next(iter(switches))
            self._turn[nic] = ports[switch]
            ports[switch] += 1
        self._given: dict[int, int] = {}
        self._routes: dict[tuple[int, int, int, bool], tuple[int, ...]] = {}

    def host_of(self, gpu: int) -> int:
        """The host of a GPU; GPUs are numbered through all hosts."""
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

    def begin(self) -> None:
        """The routes asked for from now on are one collective's. Adaptive routing spreads them among themselves,
        whatever went before: the order in which collectives are priced is chance."""
        if self._adaptive:
            self._given.clear()
            self._routes.clear()

    def lanes(self, src_gpu: int, dst_gpu: int, count: int) -> dict[tuple[int, ...], int]:
        """The ways that `count` flows between GPUs of two hosts take, without PXN, and how many take each."""
        head, source, target, tail = self._ends(src_gpu, dst_gpu, direct=True)
        ways: dict[tuple[int, ...], int] = {}
        for key in range(count):
            way = self._across(source, target, key)
            if (source, target) in self._only:
                return {(*head, *way, *tail): count}
            ways[way] = ways.get(way, 0) + 1
        return {(*head, *way, *tail): flows for way, flows in ways.items()}

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
        return sum([self.links[link].latency_ns for link in route])

    def by_nvlink(self, src_gpu: int, dst_gpu: int) -> bool:
        """True if NVLink joins two GPUs of one host, without PCIe."""
        width = len(self.nic_of)
        way = self._inside(0, f"gpu{src_gpu % width}", f"gpu{dst_gpu % width}")
        return all(self.links[link].target.startswith(("h0.gpu", "h0.nvswitch")) for link in way)

    # ------------------------------------------------------------------ how routes are found

    def _find(self, src: int, dst: int, key: int, direct: bool) -> tuple[int, ...]:
        width = len(self.nic_of)
        if src // width == dst // width:
            return self._inside(src // width, f"gpu{src % width}", f"gpu{dst % width}")
        head, source, target, tail = self._ends(src, dst, direct)
        return (*head, *self._across(source, target, key), *tail)

    def _ends(self, src: int, dst: int, direct: bool) -> tuple[tuple[int, ...], str, str, tuple[int, ...]]:
        """Between GPUs of two hosts: the way to a NIC of the source's host, both NICs, the way from the other."""
        width = len(self.nic_of)
        (here, source), (there, target) = divmod(src, width), divmod(dst, width)
        to_rail: tuple[int, ...] = ()
        rail = self.nic_of[target]
        if self.nic_of[source] != rail:
            door = None if direct else self._door(source, rail)
            if door is None:
                rail = self.nic_of[source]
            else:
                to_rail = self._inside(here, f"gpu{source}", f"gpu{door}")
                source = door
        own, far = f"nic{rail}", f"nic{self.nic_of[target]}"
        head = self._inside(here, f"gpu{source}", own)
        return (*to_rail, *head), f"h{here}.{own}", f"h{there}.{far}", self._inside(there, far, f"gpu{target}")

    def _door(self, source: int, rail: int) -> int | None:
        """The GPU next to `source` that owns `rail` and that NVLink reaches, if PXN is on."""
        if self.pxn:
            for gpu, nic in enumerate(self.nic_of):
                if nic == rail and self.by_nvlink(source, gpu):
                    return gpu
        return None

    def _inside(self, host: int, source: str, target: str) -> tuple[int, ...]:
        """The fastest way inside a host; hosts are identical, so host 0's, shifted."""
        shifted = self._shifted.get((host, source, target))
        if shifted is not None:
            return shifted
        found = self._local.get((source, target))
        if found is None:
            found = self._local[source, target] = self._fastest(source, target)
        shift = host * self._host_links
        shifted = self._shifted[host, source, target] = tuple([link + shift for link in found])
        return shifted

    def _fastest(self, source: str, target: str) -> tuple[int, ...]:
        """The way in host 0 of the least sum of seconds per byte (Dijkstra); of equal ones the one of fewer hops."""
        end = f"h0.{target}"
        ways: list[tuple[float, int, tuple[int, ...], str]] = [(0.0, 0, (), f"h0.{source}")]
        done = set()
        while ways:
            length, hops, links, node = heapq.heappop(ways)
            if node == end:
                return links
            if node in done or (hops and node.startswith(("h0.gpu", "h0.nic"))):
                continue
            done.add(node)
            for link, to in self._host.get(node, ()):
                heapq.heappush(ways, (length + 1 / self.links[link].bandwidth, hops + 1, (*links, link), to))
        raise PhantoraError(f"no way from {source} to {target} inside a host")

    def _across(self, source: str, target: str, key: int) -> tuple[int, ...]:
        """Links from NIC to NIC through the fabric, hop by hop."""
        only = self._only.get((source, target))
        if only is not None:
            return only
        last = self._last.get(target, {})
        ends = frozenset(last)
        route: list[int] = []
        chosen = False
        node = source
        while node not in last:
            equal = self._nearer(node, ends)
            if not equal:
                raise PhantoraError(f"no way from {source} to {target} in the cluster's fabric")
            if len(equal) == 1:
                link, node = equal[0]
            elif self._adaptive:
                turn = self._turn.get(source, 0) % len(equal)
                link, node = min(equal[turn:] + equal[:turn], key=lambda way: self._given.get(way[0], 0))
            else:
                link, node = equal[_hash(self._seed, source, target, key, len(route)) % len(equal)]
            chosen = chosen or len(equal) > 1
            self._given[link] = self._given.get(link, 0) + 1
            route.append(link)
        way = (*route, last[node])
        if not chosen and not self._adaptive:  # the same for every flow
            self._only[source, target] = way
        return way

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
        hops = self._hops.get(ends)
        if hops is None:
            hops = self._hops[ends] = dict.fromkeys(sorted(ends), 0)
            reached = list(hops)
            for node in reached:  # which grows: breadth first
                for before in self._before.get(node, ()):
                    if before not in hops:
                        hops[before] = hops[node] + 1
                        reached.append(before)
        return hops


def is_nic(node: str) -> bool:
    """True if `node`, by its name, is a NIC of some host."""
    return node.startswith("h") and ".nic" in node


def _hash(seed: int, source: str, target: str, key: int, hop: int) -> int:
    """Equal in every process and on every machine."""
    text = f"{seed} {source} {target} {key} {hop}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")

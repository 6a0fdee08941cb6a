"""Flows of a collective, as shares of its size, on their links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from phantora.hardware import Topology
from phantora.sim.collectives.tuner import NVLS, NVLS_TREE, PAT, TREE, reduces_all, wire_share
from phantora.wire.layout import Coll

ALL_PAIRS = 64  # members up to which an exchange of all with all has a flow for each pair


@dataclass(slots=True)  # as `Flow`
class Share:
    """`count` equal flows over `links`; each moves `share` of the collective's bytes."""

    src: int
    dst: int
    links: tuple[int, ...]
    share: float
    count: int


@dataclass(frozen=True)
class Pattern:
    """All flows of a collective of one kind among given members."""

    shares: tuple[Share, ...]
    floor: float
    """Seconds per byte of the collective that the most loaded link needs."""
    hop_ns: int
    """Longest way between two hosts, one way."""


@dataclass(frozen=True)
class Groups:
    """Members of a communicator by host, in the order in which rings visit them."""

    hosts: tuple[tuple[int, ...], ...]
    """GPU numbers, ascending: neighbours in number are neighbours on the links."""
    entries: tuple[tuple[int, ...], ...]
    """By host: positions in its group of one GPU for each rail; every host has the same number."""

    @property
    def rails(self) -> int:
        """Number of rails: rings between hosts."""
        return len(self.entries[0])

    def rings(self) -> Iterator[list[int]]:
        """One ring per rail. A ring that enters a host on one rail leaves on the one before, and the
        next host is passed the other way round: so every hop between hosts keeps its rail."""
        for rail in range(self.rails):
            ring: list[int] = []
            for number, (members, entries) in enumerate(zip(self.hosts, self.entries, strict=True)):
                start = entries[rail]
                turned = [*members[start:], *members[:start]]
                ring += turned if number % 2 == 0 else turned[::-1]
            yield ring


def group(topology: Topology, gpus: Sequence[int]) -> Groups:
    """`gpus`, in the order of their ranks, by host."""
    hosts: dict[int, list[int]] = {}
    for gpu in gpus:
        hosts.setdefault(topology.host_of(gpu), []).append(gpu)
    members = tuple(tuple(sorted(each)) for each in hosts.values())
    if len(members) == 1:
        return Groups(members, ((0,),))
    entries = []
    for each in members:
        first: dict[int, int] = {}
        for position, gpu in enumerate(each):
            first.setdefault(topology.rail_of(gpu), position)
        entries.append(tuple(first.values()))
    rails = min(map(len, entries))
    return Groups(members, tuple(entry[:rails] for entry in entries))


def make(topology: Topology, groups: Groups, kind: int, algorithm: str, channels: int, root: int) -> Pattern:
    """The pattern of `algorithm`; `root` is a GPU, for kinds that have one."""
    topology.begin()
    name = Coll.names()[kind]
    if name in ("ALL_TO_ALL", "GATHER", "SCATTER"):
        shares = _exchange(topology, groups, name, root)
    elif algorithm in (NVLS, NVLS_TREE):
        shares = [*_in_switch(topology, groups, kind)]
        if algorithm == NVLS_TREE:
            shares += _routed(topology, _tree_edges(groups, False), channels)
    elif algorithm == PAT:
        shares = _routed(topology, _binomial_edges(groups), channels)
    elif algorithm == TREE:
        shares = _routed(topology, _tree_edges(groups, True), channels)
    else:
        shares = _routed(topology, _ring_edges(groups, kind, root), channels)
    return seal(topology, shares)


def seal(topology: Topology, shares: Iterable[Share]) -> Pattern:
    """The pattern of `shares`, with what it loads each link with."""
    kept = tuple(shares)
    if len(kept) == 1:  # a send: of a folded run's pairs there are thousands, and of links ten thousands
        return _alone(topology, kept[0])
    counts = np.fromiter((len(share.links) for share in kept), np.int64, len(kept))
    links = np.fromiter((link for share in kept for link in share.links), np.int64, int(counts.sum()))
    amounts = np.fromiter((share.share * share.count for share in kept), np.float64, len(kept))
    loads = np.bincount(links, np.repeat(amounts, counts), len(topology.links))
    width = len(topology.nic_of)
    way, hop_ns = None, 0
    for share in kept:
        if share.src // width != share.dst // width and share.src >= 0 and share.dst >= 0 and share.links is not way:
            way = share.links
            hop_ns = max(hop_ns, topology.latency_ns(way))
    return Pattern(kept, float((loads / topology.bandwidths).max(initial=0.0)), hop_ns)


def _alone(topology: Topology, share: Share) -> Pattern:
    amount = share.share * share.count
    loads: dict[int, float] = {}
    for link in share.links:
        loads[link] = loads.get(link, 0.0) + amount
    floor = max((load / float(topology.bandwidths[link]) for link, load in loads.items()), default=0.0)
    width = len(topology.nic_of)
    far = share.src // width != share.dst // width and share.src >= 0 and share.dst >= 0
    return Pattern((share,), floor, topology.latency_ns(share.links) if far else 0)


_Edge = tuple[int, int, float]  # source, target, share; a named tuple takes three times as long to make


def _ring_edges(groups: Groups, kind: int, root: int) -> Iterator[_Edge]:
    members = sum(map(len, groups.hosts))
    share = wire_share(kind, members) / groups.rails
    name = Coll.names()[kind]
    for ring in groups.rings():
        for src, dst in zip(ring, [*ring[1:], ring[0]], strict=True):
            # A broadcast ends at the member before its root; a reduction begins at the one after it.
            if not (name == "BROADCAST" and dst == root) and not (name == "REDUCE" and src == root):
                yield src, dst, share


def _tree_edges(groups: Groups, chains: bool) -> Iterator[_Edge]:
    """Data go up and come down: two trees of hosts, half of the data each, on every rail; with
    `chains` a chain of a host's members hangs on each."""
    rails = groups.rails
    for rail in range(rails):
        for tree in (0, 1):
            for child, parent in _double_tree(len(groups.hosts), tree):
                ends = [groups.hosts[host][groups.entries[host][rail]] for host in (child, parent)]
                yield ends[0], ends[1], 0.5 / rails
                yield ends[1], ends[0], 0.5 / rails
        if chains:
            for members, entries in zip(groups.hosts, groups.entries, strict=True):
                chain = [*members[entries[rail] :], *members[: entries[rail]]]
                for upper, lower in pairwise(chain):
                    yield lower, upper, 1 / rails
                    yield upper, lower, 1 / rails


def _binomial_edges(groups: Groups) -> Iterator[_Edge]:
    """PAT, with one member per host: in the iteration of the largest power of two each member passes one part on, in
    each nearer one twice as many, and to its neighbour what is left."""
    members = [each[0] for each in groups.hosts]
    count = len(members)
    left, parts, distance = count - 1, 1, 1 << (count - 1).bit_length() - 1
    while distance:
        share = (min(parts, left) if distance > 1 else left) / count
        for index, src in enumerate(members):
            yield src, members[(index + distance) % count], share
        left, parts, distance = left - parts, parts * 2, distance // 2


def _double_tree(hosts: int, tree: int) -> Iterator[tuple[int, int]]:
    """(child, parent) pairs of one of two binary trees, in which no host has children twice: the second
    is the first mirrored, or shifted by one if `hosts` is odd."""
    for host in range(1, hosts):
        bit = host & -host
        parent = (host ^ bit) | bit << 1
        parent = parent if parent < hosts else host ^ bit
        if tree == 0:
            yield host, parent
        elif hosts % 2 == 0:
            yield hosts - 1 - host, hosts - 1 - parent
        else:
            yield (host + 1) % hosts, (parent + 1) % hosts


def _routed(topology: Topology, edges: Iterable[_Edge], channels: int) -> list[Share]:
    """Flows of `edges`. What crosses hosts goes in as many as a rail has channels, each hashed for
    itself; those that meet on all their links count as one class."""
    total: dict[tuple[int, int], float] = {}
    for src, dst, share in edges:
        total[src, dst] = total.get((src, dst), 0.0) + share
    lanes = max(1, channels // max(1, len(set(topology.nic_of))))
    shares: list[Share] = []
    width = len(topology.nic_of)
    for (src, dst), share in total.items():
        if src // width == dst // width:
            shares.append(Share(src, dst, topology.route(src, dst), share, 1))
            continue
        for way, count in topology.lanes(src, dst, lanes).items():
            shares.append(Share(src, dst, way, share / lanes, count))
    return shares


def _in_switch(topology: Topology, groups: Groups, kind: int) -> Iterator[Share]:
    """NVLS: data meet in the switch. Every GPU sends all it has up, and its n-th of the result; down
    come its n-th, reduced, and all of the result."""
    for members in groups.hosts:
        part = 1 / len(members)
        name = Coll.names()[kind]
        up = 1 + part if reduces_all(kind) else part if name == "ALL_GATHER" else 1.0
        down = 1 + part if reduces_all(kind) else 1.0 if name == "ALL_GATHER" else part
        for index, gpu in enumerate(members):
            other = members[index - 1]
            yield Share(gpu, -1, topology.route(gpu, other)[:1], up, 1)
            yield Share(-1, gpu, topology.route(other, gpu)[-1:], down, 1)


def _exchange(topology: Topology, groups: Groups, name: str, root: int) -> list[Share]:
    members = [gpu for each in groups.hosts for gpu in each]
    part = 1 / len(members)
    if name == "GATHER":
        pairs = [(gpu, root) for gpu in members if gpu != root]
    elif name == "SCATTER":
        pairs = [(root, gpu) for gpu in members if gpu != root]
    elif len(members) <= ALL_PAIRS:
        pairs = [(src, dst) for src in members for dst in members if src != dst]
    else:
        return _crowd(topology, groups, part)
    return [Share(src, dst, topology.route(src, dst), part, 1) for src, dst in pairs]


def by_domain(topology: Topology, groups: Groups, near: float, far: float) -> list[Share]:
    """Each member sends `near` to every member of its NVLink domain, and `far` to one member of every other domain:
    the one in its own position."""
    shares = []
    for here, members in enumerate(groups.hosts):
        pairs = [(src, dst) for src in members for dst in members if src != dst]
        shares += [Share(src, dst, topology.route(src, dst), near, 1) for src, dst in pairs]
        for there, others in enumerate(groups.hosts):
            if there != here:
                pairs = [(src, others[place % len(others)]) for place, src in enumerate(members)]
                shares += [Share(src, dst, topology.route(src, dst), far, 1) for src, dst in pairs]
    return shares


def _crowd(topology: Topology, groups: Groups, part: float) -> list[Share]:
    """All to all among many: one flow per link with all that it carries."""
    loads: dict[int, float] = {}

    def add(route: tuple[int, ...], share: float) -> None:
        for link in route:
            loads[link] = loads.get(link, 0.0) + share

    for here, members in enumerate(groups.hosts):
        for src in members:
            for dst in members:
                if src != dst:
                    add(topology.route(src, dst), part)
        for there, others in enumerate(groups.hosts):
            if there == here:
                continue
            for dst in others:
                doors = [gpu for gpu in members if topology.rail_of(gpu) == topology.rail_of(dst)]
                joined = all(topology.by_nvlink(gpu, doors[0]) for gpu in members if doors and gpu != doors[0])
                if topology.pxn and doors and joined:
                    add(topology.route(doors[0], dst), part * len(members))
                    for src in members:
                        if src not in doors:
                            add(topology.route(src, doors[0]), part)
                else:
                    for src in members:
                        add(topology.route(src, dst), part)
    return [Share(-1, -1, (link,), share, 1) for link, share in sorted(loads.items())]

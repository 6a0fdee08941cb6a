"""Prices the communication of one cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from phantora.cost.transfers import LATENCY_NS
from phantora.cost.types import CALIBRATED
from phantora.errors import PhantoraError
from phantora.hardware import Cluster, Flow, Topology, build, over_pcie
from phantora.hardware.builders import NETWORK_SHARE, NVLINK_SHARE, PCIE_SHARE
from phantora.hardware.clusters import NETWORK_LATENCY_NS, NVLINK_LATENCY_NS, PCIE_LATENCY_NS
from phantora.sim.collectives import experts, patterns, symmetric
from phantora.sim.collectives.chunks import NVLS_CHANNELS
from phantora.sim.collectives.environment import NcclEnvironment
from phantora.sim.collectives.experts import Rows
from phantora.sim.collectives.measured import MeasuredCurves
from phantora.sim.collectives.patterns import Groups, Pattern, Share
from phantora.sim.collectives.timing import Constants, Timing
from phantora.sim.collectives.tuner import (
    DIRECT,
    GBPS,
    NVLS,
    NVLS_TREE,
    P2P,
    PAT,
    SIMPLE,
    TREE,
    Choice,
    Placement,
    Tuner,
)
from phantora.wire.layout import NCCL_DTYPE_NAMES, SYMMETRIC, Coll

REFERENCE_GPU, REFERENCE_MEMBERS = "H200-SXM", 4
CHANNELS_PER_RAIL = 2  # rings between hosts: NCCL finds one per NIC and doubles it
MAX_CHANNELS = 64
OWN_RATE = 2000 * GBPS  # of a send from a GPU to itself: assumed

_ERRORS = {CALIBRATED: 0.1, "fitted": 0.13, "scaled": 0.13, "analytic": 0.25}


@dataclass(frozen=True, kw_only=True)
class CollectivePrice:
    """Time that an operation occupies each member's stream after the last arrival, and its source.

    With the links to itself it takes `duration_ns` = `latency_ns` + the longest of bytes / rate of `flows`.
    """

    duration_ns: int
    latency_ns: int
    flows: tuple[Flow, ...]
    """Flows on the links, from `latency_ns` on; ids are those of `CollectiveModel.topology`."""
    algorithm: str
    """RING, TREE, NVLS, NVLS_TREE, PAT, P2P (send, receive and what is built from them) or DIRECT (nothing
    to move)."""
    protocol: str
    """LL, LL128 or SIMPLE."""
    channels: int
    provenance: str
    """``measured (calibration)``: by a trace of this machine; ``fitted``: by formulas fitted to measurements of this
    GPU and its links, or to published ones (symmetric memory); ``scaled`` from these; or ``analytic`` (network,
    PCIe)."""
    own_error: float | None = None
    """Error bar of operations that have one of their own."""

    @property
    def error(self) -> float:
        """Relative error bar of the duration, which contains nine of ten comparisons in docs/accuracy.md
        (the measured host; the other number of GPUs than the one fitted to; published systems). That of a
        calibration is an assumption."""
        return _ERRORS[self.provenance] if self.own_error is None else self.own_error


class CollectiveModel:
    """Prices the communication of `cluster`, as NCCL does it with `environment`.

    Rank r is GPU r of the cluster. Of flows on links of a host alone only those of `hosts` are listed, if given: by
    symmetry the others take as long.
    """

    def __init__(
        self,
        cluster: Cluster,
        environment: NcclEnvironment | None = None,
        constants: Constants | None = None,
        hosts: frozenset[int] | None = None,
    ) -> None:
        self._hosts = hosts
        self.environment = environment or NcclEnvironment()
        if self.environment.p2p_disabled:
            cluster = over_pcie(cluster)
        if self.environment.nics:
            cluster = replace(cluster, wiring=replace(cluster.wiring, nics=len(self.environment.nics)))
        self.cluster = cluster
        self.topology: Topology = build(cluster, self.environment.pxn)
        gpu, intra = cluster.gpu, cluster.intra
        constants = constants or Constants()
        nvlink = cluster.wiring.kind != "pcie"
        link = intra.bandwidth * NVLINK_SHARE / 1e6
        pcie_port = gpu.pcie_bandwidth * PCIE_SHARE if nvlink else intra.bandwidth
        pcie = pcie_port * constants.pcie_share / 1e6
        nic = cluster.inter.bandwidth * NETWORK_SHARE / 1e6
        tuner = Tuner(
            generation=min(max(gpu.compute_capability[0], 7), 10),
            link=link,
            pcie=pcie,
            nic=cluster.inter.bandwidth / 1e6,
            switch=cluster.wiring.kind == "nvswitch" and gpu.compute_capability[0] >= 9,
            cpu=cluster.wiring.cpu,
            environment=self.environment,
        )
        reference = NVLINK_LATENCY_NS if nvlink else PCIE_LATENCY_NS
        fit = gpu.calibration
        self._timing = Timing(
            tuner=tuner,
            link=link,
            pcie=pcie,
            nic=nic,
            link_latency=intra.latency_ns / reference,
            ring_channels=fit.nccl_channels,
            pcie_channels=fit.nccl_pcie_channels,
            peer_channels=fit.nccl_peer_channels,
            constants=constants,
        )
        self._measured = MeasuredCurves(gpu.measured.collectives) if gpu.measured else None
        self._groups = lru_cache(maxsize=4096)(self._group)
        self._patterns = lru_cache(maxsize=256)(self._pattern)
        self._prices = lru_cache(maxsize=64)(self._price)  # the engine asks once; a large one has 5,000 flows

    # ------------------------------------------------------------------ public

    def collective(
        self,
        kind: int,
        ranks: tuple[int, ...],
        bytes: int,
        dtype: int,
        root: int = 0,
        blocks: int = 0,
        rows: Rows | None = None,
    ) -> CollectivePrice:
        """A collective of `kind` (``wire.layout.Coll``) over global `ranks`; `bytes` as nccl-tests
        counts; `root` is an index into `ranks`, or the channel of a kernel on the memory of peers, whose `blocks` are
        given or those that torch would choose; `rows` of exchanges between experts."""
        if not 0 <= dtype < len(NCCL_DTYPE_NAMES):
            last = len(NCCL_DTYPE_NAMES) - 1
            raise PhantoraError(f"collective with unknown NCCL data type {dtype}: types are 0 to {last}")
        if rows is not None:
            return self._experts(kind, ranks, bytes, blocks, rows)
        return self._prices(kind, ranks, bytes, -1 if kind in SYMMETRIC else ranks[root], blocks)

    def transfer(
        self, src: int, dst: int, bytes: int, concurrent: int, members: int = 2, duplex: bool = False
    ) -> CollectivePrice:
        """A send of `bytes` from global rank `src` and its receive on `dst`.

        `concurrent` transfers share the sender's or the receiver's port; `members` is the size of the
        communicator (it decides the channels); `duplex`: both ends also move data the other way.
        `duration_ns` is that of `concurrent` equal transfers. They share the port as they come and go, so the flow's
        rate is what this one reaches when it has the port to itself; and because a port that serves several peers
        does not reach its full rate, the flow keeps it busy with as many more bytes as that takes.
        """
        constants = self._timing.constants
        if src == dst:
            place, _ = self._groups((src,))
            time = constants.p2p_ll_base, bytes / OWN_RATE
            return self._finish(time, Choice(P2P, SIMPLE), 1, place, None, bytes)
        place, _ = self._groups((src, dst))
        self.topology.begin()
        pattern = patterns.seal(self.topology, [Share(src, dst, self.topology.route(src, dst), 1.0, 1)])
        duplex = duplex or concurrent > 1
        far = self._extra(pattern) if place.hosts > 1 else None
        members = max(members, 2)
        time, protocol, channels = self._timing.p2p(bytes, concurrent, members, duplex, place.nvlink, far)
        price = self._finish(time, Choice(P2P, protocol), channels, place, pattern, bytes)
        if concurrent == 1 or not price.flows:
            return price
        (_, alone), _, _ = self._timing.p2p(bytes, 1, members, duplex, place.nvlink, far)
        seconds = max(alone / 1e6, bytes * pattern.floor)
        together = (price.duration_ns - price.latency_ns) / 1e9
        busy = max(float(bytes), together / concurrent / pattern.floor)
        flows = tuple(replace(flow, bytes=busy, rate=busy / seconds) for flow in price.flows)
        return replace(price, flows=flows)

    def peer_copy(self, src: int, dst: int, bytes: int, blocks: int = 0) -> CollectivePrice:
        """A copy of `bytes` from global rank `src` to `dst` that one of the two makes alone, by a kernel of `blocks`;
        0: by a copy engine."""
        place, _ = self._groups((src, dst))
        link = self._link(place)
        work = symmetric.push(bytes, link, blocks) if blocks else symmetric.copy(link)
        return self._shared(work, place, [(src, dst)], bytes)

    def signal(self, src: int, dst: int, puts: bool) -> CollectivePrice:
        """The kernel that gives a signal, or that takes one, from global rank `src` to `dst`."""
        place, _ = self._groups((src, dst))
        return self._shared(symmetric.signal(puts), place, [], 0)

    # ------------------------------------------------------------------ symmetric memory

    def _link(self, place: Placement) -> float:
        return self._timing.link if place.nvlink else self._timing.pcie

    def _shared(
        self, work: symmetric.Work, place: Placement, pairs: Sequence[tuple[int, int]], bytes: int
    ) -> CollectivePrice:
        """`work` whose flows go between `pairs` of members."""
        self.topology.begin()
        shares = [Share(src, dst, self.topology.route(src, dst), work.share, 1) for src, dst in pairs]
        pattern = patterns.seal(self.topology, shares) if work.share else None
        moved = work.share * bytes * (place.members - 1 if len(pairs) > 1 else 1)
        time = work.base * (self._timing.link_latency if place.nvlink else 1.0), moved / work.rate
        choice = Choice(work.algorithm, SIMPLE)
        price = self._finish(time, choice, work.blocks, place, pattern, bytes)
        return replace(price, provenance="fitted", own_error=work.error)

    # ------------------------------------------------------------------ members, channels, flows

    def _group(self, ranks: tuple[int, ...]) -> tuple[Placement, Groups]:
        groups = patterns.group(self.topology, ranks)
        nvlink = self.cluster.wiring.kind != "pcie" and all(
            self.topology.by_nvlink(src, dst) for members in groups.hosts[:1] for src, dst in pairwise(members)
        )
        most = max(map(len, groups.hosts))
        return Placement(len(ranks), len(groups.hosts), groups.rails, most, nvlink), groups

    def _channels(self, place: Placement) -> int:
        own = self._timing.ring_channels if place.nvlink else self._timing.pcie_channels
        if place.hosts > 1:
            own = min(own, CHANNELS_PER_RAIL * place.rails)
        own = max(own, self.environment.min_channels)
        return max(1, min(own, self.environment.max_channels or MAX_CHANNELS, MAX_CHANNELS))

    def _pattern(self, kind: int, ranks: tuple[int, ...], algorithm: str, root: int) -> Pattern:
        place, groups = self._groups(ranks)
        pattern = patterns.make(self.topology, groups, kind, algorithm, self._channels(place), root)
        if self._hosts is None:
            return pattern
        hosts = {*self._hosts, None}
        shares = (each for each in pattern.shares if not hosts.isdisjoint(map(self.topology.host_of_link, each.links)))
        return replace(pattern, shares=tuple(shares))

    def _extra(self, pattern: Pattern) -> float:
        """Latency between hosts in addition to the one of NCCL's constants, us."""
        return (pattern.hop_ns - NETWORK_LATENCY_NS) / 1e3 if pattern.hop_ns else 0.0

    def _finish(
        self,
        time: tuple[float, float],
        choice: Choice,
        channels: int,
        place: Placement,
        pattern: Pattern | None,
        bytes: int,
    ) -> CollectivePrice:
        """The price of what takes `time` (latency and transfer, us) with the links to itself."""
        latency, transfer = time
        provenance = "analytic"
        if place.nvlink and place.hosts == 1:
            on_reference = self.cluster.gpu.name == REFERENCE_GPU and place.members <= REFERENCE_MEMBERS
            provenance = "fitted" if on_reference and choice.algorithm != NVLS else "scaled"
        if pattern is not None:
            transfer = max(transfer, bytes * pattern.floor * 1e6)
        if pattern is None or bytes == 0:
            duration_ns = latency_ns = max(1, round((latency + transfer) * 1e3))
            flows: tuple[Flow, ...] = ()
        else:
            latency_ns = round(latency * 1e3)
            duration_ns = latency_ns + math.ceil(transfer * 1e3)  # up: no rate above a link's
            per_second = 1e9 / (duration_ns - latency_ns)
            flows = tuple(
                Flow(
                    src=each.src,
                    dst=each.dst,
                    links=each.links,
                    bytes=each.share * bytes,
                    rate=each.share * bytes * per_second,
                    count=each.count,
                )
                for each in pattern.shares
            )
        return CollectivePrice(
            duration_ns=duration_ns,
            latency_ns=latency_ns,
            flows=flows,
            algorithm=choice.algorithm,
            protocol=choice.protocol,
            channels=channels,
            provenance=provenance,
        )

    # ------------------------------------------------------------------ prices

    def _price(self, kind: int, ranks: tuple[int, ...], bytes: int, root: int, blocks: int) -> CollectivePrice:
        price = self._modelled(kind, ranks, bytes, root, blocks)
        place, _ = self._groups(ranks)
        if place.hosts > 1 or not bytes or self._measured is None:
            return price
        ratio = self._measured.ratio(
            Coll.names()[kind],
            place.members,
            bytes,
            lambda size: self._modelled(kind, ranks, size, root, blocks).duration_ns,
        )
        return price if ratio is None else _scaled(price, ratio)

    def _modelled(self, kind: int, ranks: tuple[int, ...], bytes: int, root: int, blocks: int) -> CollectivePrice:
        name = Coll.names()[kind]
        place, _ = self._groups(ranks)
        if place.members == 1:
            copied = bytes / (self.cluster.gpu.hbm_bandwidth / 2e6)
            return self._finish((LATENCY_NS / 1e3, copied), Choice(DIRECT, SIMPLE), 1, place, None, bytes)
        if name in ("ALL_TO_ALL", "GATHER", "SCATTER"):
            return self._exchange(kind, ranks, bytes, root)
        if kind in SYMMETRIC:
            work = symmetric.together(kind, place.members, bytes, self._link(place), blocks)
            return self._shared(work, place, [(src, dst) for src in ranks for dst in ranks if src != dst], bytes)
        channels = self._channels(place)
        choice = self._timing.tuner.choose(kind, place, channels, bytes)
        pattern = self._patterns(kind, ranks, choice.algorithm, root)
        extra = self._extra(pattern)
        if choice.algorithm in (NVLS, NVLS_TREE):
            channels = NVLS_CHANNELS.get(self._timing.tuner.generation, 16)
            time = self._timing.nvls(kind, place, bytes, choice.algorithm, extra, channels)
        elif choice.algorithm == PAT:
            time = self._timing.pat(kind, place, bytes, extra)
        elif choice.algorithm == TREE:
            buffer = self.environment.buffer_bytes
            time = self._timing.tree(place, channels, bytes, choice.protocol, extra, buffer)
        else:
            chunk = self.environment.buffer_bytes / 2  # a channel's buffer contains two slices
            time = self._timing.ring(kind, place, channels, bytes, choice.protocol, extra, chunk)
        return self._finish(time, choice, channels, place, pattern, bytes)

    def _exchange(self, kind: int, ranks: tuple[int, ...], bytes: int, root: int) -> CollectivePrice:
        """All-to-all; and gather and scatter, in which everything passes the root's ports."""
        place, groups = self._groups(ranks)
        pattern = self._patterns(kind, ranks, P2P, root)
        everyone = Coll.names()[kind] == "ALL_TO_ALL"
        local = _local(groups.hosts, root, everyone)
        part = bytes / place.members
        near_peers, far_peers = local - 1, place.members - local
        times = []
        if near_peers:
            times.append(self._timing.p2p(part, near_peers, place.members, everyone, place.nvlink, None))
        if far_peers:
            far = self._extra(pattern)
            times.append(self._timing.p2p(part, far_peers, place.members, everyone, place.nvlink, far))
        time, protocol, channels = max(times, key=lambda way: sum(way[0]))
        return self._finish(time, Choice(P2P, protocol), channels, place, pattern, bytes)

    def _experts(self, kind: int, ranks: tuple[int, ...], bytes: int, sms: int, rows: Rows) -> CollectivePrice:
        """`bytes` in `rows` of the member that moves most, by a kernel on `sms` SMs."""
        place, groups = self._groups(ranks)
        if kind == Coll.EXPERT_COUNTS or not bytes:
            work = symmetric.Work(
                algorithm="COUNTS", base=experts.COUNTS_US, share=0.0, rate=1.0, blocks=1, error=symmetric.SIGNAL_ERROR
            )
            return self._shared(work, place, [], 0)
        low_latency = kind in (Coll.LOW_LATENCY_DISPATCH, Coll.LOW_LATENCY_COMBINE)
        kernel, own = experts.kernel_of(kind, self.cluster.gpu, self.cluster.intra.bandwidth / 1e6)
        members, local = place.members, _local(groups.hosts, 0, True)
        domains = 0.0 if low_latency else experts.domains_of_token(rows, bytes, members, local)
        # What comes over the network goes on by NVLink, unless it is for the GPU that has received it.
        near = (local - 1) / (members if low_latency else local)
        if place.hosts == 1:
            near = (members - 1) / members
        start, transfer = kernel.us(rows.tokens, bytes / rows.row_bytes, rows.row_bytes, sms, near, local)
        if low_latency:
            pattern = self._patterns(Coll.ALL_TO_ALL, ranks, P2P, ranks[0])
        else:
            each = domains * rows.tokens * rows.row_bytes / bytes / max(1, place.hosts - 1)
            self.topology.begin()
            pattern = patterns.seal(
                self.topology, patterns.by_domain(self.topology, groups, near / max(1, local - 1), each)
            )
        if place.hosts > 1:
            start += 2 * self._extra(pattern)
            transfer = max(transfer, bytes * pattern.floor * 1e6 / experts.NETWORK_SHARE)
        choice = Choice(Coll.names()[kind].split("_")[0], SIMPLE)
        price = self._finish((start, transfer), choice, sms, place, pattern, bytes)
        error = kernel.error if own else experts.OTHER_GPU_ERROR
        return replace(
            price,
            provenance="fitted" if own else "scaled",
            own_error=max(error, experts.NETWORK_ERROR if place.hosts > 1 else 0.0),
        )


def _scaled(price: CollectivePrice, ratio: float) -> CollectivePrice:
    """`price` as it was measured: `ratio` times as long."""
    return replace(
        price,
        duration_ns=max(1, round(price.duration_ns * ratio)),
        latency_ns=max(1, round(price.latency_ns * ratio)),
        flows=tuple(replace(flow, rate=flow.rate / ratio) for flow in price.flows),
        provenance=CALIBRATED,
    )


def _local(hosts: Sequence[Sequence[int]], root: int, everyone: bool) -> int:
    """Members on the host whose ports carry most between hosts: the root's, or the smallest."""
    return min(map(len, hosts)) if everyone else next(len(members) for members in hosts if root in members)

"""Time of a collective that has the links to itself: (latency, transfer) in us.

Latency is what passes before data flow at full rate, whatever their number; transfer is what the data
take. Constants are measured on 2 and 4 H200 with torch 2.11 and NCCL 2.28.9 (device time in CUDA graphs);
between hosts they are NCCL's own, ``tuner``'s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from phantora.sim.collectives.chunks import THREAD_BYTES, nvls_tree_round, tree_chunk, used_channels
from phantora.sim.collectives.tuner import (
    GBPS,
    LL,
    LL128,
    LL128_DATA,
    LL128_SHARE,
    NVLS_LATENCY,
    NVLS_TREE,
    NVLS_TREE_CHANNEL,
    NVLS_TREE_NETWORK_LATENCY,
    PAT,
    PAT_SHARE,
    PROTOCOLS,
    RING,
    SIMPLE,
    STEP,
    TREE,
    Placement,
    Tuner,
    reduces_all,
    ring_steps,
    wire_share,
)
from phantora.units import KIB, MIB
from phantora.wire.layout import Coll

REFERENCE_LINK = 370.8 * GBPS  # payload of the H200's NVLink, one way: what NVLINK_SHARE was read off (a test compares)
P2P_LL_BYTES = 16 * KIB  # a channel's part up to which send and receive use LL
P2P_PART_BYTES = 16 * MIB  # parts above this get more channels
P2P_CHUNK_BYTES = 512 * KIB


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Measured constants. Times in us, rates in GB/s, of H200 at 370.8 GB/s of payload per direction."""

    fanout_share: float = 0.93
    """Share of the link if a GPU exchanges with several peers at once through the switch."""
    pcie_share: float = 0.75
    """Share of a PCIe link if every GPU sends and receives through the host bridge (not measured)."""
    ll_base: float = 9.9
    ll_step: float = 0.83
    """Launch, first flag and last flag of a ring in protocol LL, and each further step."""
    ll_spread: float = 0.37
    """Cost of bringing all channels in, as data grow from one channel's share to all channels'."""
    ll_rate: float = 230.0
    """Rate at which the SMs pass LL's data on: what a rank sends, and its own n-th."""
    reduce_base: float = 21.9
    gather_base: float = 18.3
    scatter_base: float = 14.4
    """Base times of protocol Simple: all-reduce, all-gather, reduce-scatter."""
    reduce_step: float = 0.31
    """A step of an all-reduce, also in LL128: chunks shrink with the data, so that most of a step passes with them."""
    simple_step: float = 2.83
    ll128_step: float = 1.45
    copy_rate: float = 985.0
    """Rate at which a rank's own share, 1/n of the data, goes to its output in the same kernel."""
    ramp: float = 66.5
    """Time lost, at most, before both directions of the links are full; half of it at `ramp_half`
    of the data that one round of all channels moves."""
    ramp_half: float = 2.2
    reduce_ramp: float = 772.0
    reduce_ramp_half: float = 12.6
    """Ramp of an all-reduce, what its sums take included."""
    chain_base: float = 16.0
    chain_step: float = 0.57
    """Broadcast and reduce: chains that fill one direction only and have no ramp."""
    p2p_ll_base: float = 13.1
    p2p_ll_rate: float = 122.0
    p2p_base: float = 17.5
    p2p_ramp: float = 67.0
    p2p_ramp_half: float = 2.6
    one_way_channel: float = 22.8
    duplex_channel: float = 20.7
    """Rate of a channel that only sends, and of one that sends and receives."""
    nvls_base: float = NVLS_LATENCY
    nvls_ramp: float = 70.0
    nvls_ramp_half: float = 16.0
    """Reduction in the switch: NCCL's own latency; and, from published curves, time lost, at most, before it runs at
    full rate, half of it at this many MiB; with a tree of hosts above twice as much."""
    network_ll: float = 2.4
    """Time of a hop between hosts in LL, as a multiple of NCCL's latency for it (published: 45 us for 1 KiB on 2 x 8
    H200 with 400 GbE)."""


# What a GPU's port carries with reduction in the switch, of its one-way payload, by compute capability:
# S (1 + 1/n) both ways. H100: algorithm bandwidths of 258, 265, 270 and 273 GB/s with 5, 6, 7 and 8 GPUs,
# github.com/NVIDIA/nccl/issues/1455; Blackwell: 477 GB/s with 8 B300, Oracle's guide for BM.GPU.B300.
NVLS_SHARE = {9: 0.832, 10: 0.77}
NVLS_RACK = 72, 0.63
"""GPUs of the largest domain, and the share there: 425 GB/s with 72 GB200, github.com/coreweave/nccl-tests/pull/43."""
ONE_HOST = 8
"""GPUs of the domains that `NVLS_SHARE` and the ramp come from."""


def nvls_share(generation: int, members: int) -> float:
    """Share of a domain with `members` GPUs; from one host to a rack it falls with the logarithm of their number."""
    share, (most, last) = NVLS_SHARE[generation], NVLS_RACK
    beyond = max(0.0, math.log(members / ONE_HOST) / math.log(most / ONE_HOST))
    return share + min(beyond, 1.0) * (last - share)


def p2p_channels(members: int, part: float, most: int) -> int:
    """Channels that serve one peer: `most` shared by the members, more when each would carry over 16 MiB.

    This is the step of ring send/recv on 4 GPUs: 8 channels (168 GB/s) up to 128 MiB, 16 at 256 MiB.
    """
    channels = most
    while channels * members > most and channels > 1:
        channels //= 2
    while part / channels > P2P_PART_BYTES and channels < most:
        channels *= 2
    return channels


def _levels(place: Placement) -> int:
    """Hops between the root of a tree of hosts and its deepest leaf."""
    return math.ceil(math.log2(place.hosts))


def _follow(latency: float, transfer: float, first: float) -> tuple[float, float]:
    """`latency` with what the first chunks need on their way, `first` of `transfer`: they are not counted twice."""
    return max(0.0, latency - first), transfer


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Times on one cluster.

    `link`, `pcie`, `nic`: payload of a GPU's NVLink port, PCIe port and of a NIC, bytes/us.
    `link_latency`: of the way through a host, as a multiple of the reference's.
    """

    tuner: Tuner
    link: float
    pcie: float
    nic: float
    link_latency: float
    ring_channels: int
    """NCCL's own number on one host with NVLink,"""
    pcie_channels: int
    """without it,"""
    peer_channels: int
    """and of those that the peers of a send or receive share."""
    constants: Constants = field(default_factory=Constants)

    def _near(self, place: Placement) -> float:
        return self.link if place.nvlink else self.pcie

    def _speed(self, place: Placement) -> float:
        """Rates of SMs and protocols follow the link's generation."""
        return self._near(place) / REFERENCE_LINK

    def bus(self, place: Placement, channels: int) -> float:
        """Rate at which each member passes data on around the ring, bytes per us."""
        near = self._near(place)
        if place.nvlink and channels < self.ring_channels:  # fewer than fill the link
            per_channel = max(self.constants.duplex_channel * GBPS * self._speed(place), near / self.ring_channels)
            near = min(near, channels * per_channel)
        if place.hosts == 1:
            return near
        ports = self.nic * place.rails
        local = place.most_local  # of a host's members one per ring sends to its NIC instead
        return ports if local == 1 else min(near * local / (local - 1), ports)

    def network_step(self, place: Placement, protocol: str, algorithm: str, extra: float) -> float:
        """Time of a hop between hosts; `extra` us on top of NCCL's."""
        step = STEP["network", TREE if place.most_local == 1 else algorithm][PROTOCOLS.index(protocol)]
        return step * (self.constants.network_ll if protocol == LL else 1.0) + extra

    def ring(
        self, kind: int, place: Placement, channels: int, bytes: int, protocol: str, extra: float, chunk: float
    ) -> tuple[float, float]:
        """A ring, or the chain of a broadcast or reduce. `chunk`: bytes of a channel's slice in Simple."""
        c, n, bus = self.constants, place.members, self.bus(place, channels)
        name = Coll.names()[kind]
        wire = wire_share(kind, n) * bytes
        between = ring_steps(kind, place.hosts)
        steps = ring_steps(kind, n) - between
        far = between * self.network_step(place, protocol, RING, extra) if place.hosts > 1 else 0.0
        chain = name in ("BROADCAST", "REDUCE")

        def near(step: float) -> float:
            step *= self.link_latency
            if place.hosts > 1 and not chain:
                step = max(step, self.tuner.overhead(PROTOCOLS.index(protocol)))
            return steps * step

        if protocol == LL:
            used = min(channels, max(1.0, bytes / THREAD_BYTES[LL]))
            spread = c.ll_spread * math.log(used) / math.log(max(channels, 2))
            rate = bus / 2  # every 8-byte word carries 4 bytes of data
            if place.hosts > 1:
                rate = min(rate, self.tuner.ll_rate(place))
            handled = wire if chain else wire + bytes / n
            transfer = max(wire / rate, handled / (c.ll_rate * GBPS * (self._speed(place) if place.nvlink else 1.0)))
            return c.ll_base + near(c.chain_step if chain else c.ll_step) + far + spread, transfer
        bus *= LL128_SHARE if protocol == LL128 and place.hosts > 1 else 1.0
        if chain:
            return c.chain_base + near(c.chain_step) + far, wire / bus
        reduces = reduces_all(kind)
        slow = self._near(place) / bus  # a ring that waits for the network fills its links as slowly
        round = n * channels * chunk
        if reduces:
            base, step, copied = c.reduce_base, c.reduce_step, 0.0
            ramp = c.reduce_ramp * bytes / (bytes + c.reduce_ramp_half * round)
        else:
            base = c.gather_base if name == "ALL_GATHER" else c.scatter_base
            step = c.ll128_step if protocol == LL128 else c.simple_step
            copied = bytes / n / (c.copy_rate * GBPS * (self._speed(place) if place.nvlink else 1.0))
            ramp = c.ramp * bytes / (bytes + c.ramp_half * round)
        latency = base + near(step) + far
        return latency, wire / bus + copied + slow * ramp

    def tree(
        self, place: Placement, channels: int, bytes: int, protocol: str, extra: float, buffer_bytes: int
    ) -> tuple[float, float]:
        """All-reduce up and down a tree of hosts with a chain inside each.

        A hop begins when the one before has brought a whole chunk: the first chunk goes all the way up and down at
        the rate of single hops, the others follow behind it.
        """
        c, index = self.constants, PROTOCOLS.index(protocol)
        step = (c.ll_step, c.ll128_step, c.simple_step)[index] * self.link_latency
        wire = (2.0, 1 / LL128_DATA, 1.0)[index]  # bytes per byte of data
        channels = used_channels(channels, bytes, protocol)
        chunk = tree_chunk(place, channels, bytes, protocol, buffer_bytes)
        passed = c.one_way_channel * GBPS * (self._speed(place) if place.nvlink else 1.0)
        most = self.tuner.tree_channel(place)
        passed = min(passed, self._near(place), most)
        lanes = max(1.0, channels / place.rails)
        latency = c.ll_base if protocol == LL else c.reduce_base
        latency += 2 * (place.most_local - 1) * (step + wire * chunk / passed)
        if place.hosts > 1:
            hop = self.network_step(place, protocol, TREE, extra) + lanes * chunk * wire / self.nic
            latency += 2 * _levels(place) * hop
        # What a GPU passes up and down leaves by the same port.
        rate = min(self._near(place), channels * most) / (2 if place.most_local > 1 else 1) / wire
        if place.hosts > 1:
            rate = min(rate, self.nic * place.rails / (1 if place.hosts == 2 else 2) / wire)
            rate = min(rate, self.tuner.ll_rate(place)) if protocol == LL else rate
        return _follow(latency, bytes / rate, channels * chunk / rate)

    def pat(self, kind: int, place: Placement, bytes: int, extra: float) -> tuple[float, float]:
        """All-gather or reduce-scatter of one GPU per host by binomial trees, as NCCL expects it (not measured)."""
        latency = self.tuner.latency(kind, place, 1, bytes, PAT, PROTOCOLS.index(SIMPLE))
        rate = PAT_SHARE * self.nic * place.rails
        return latency + math.ceil(math.log2(place.hosts)) * extra, wire_share(kind, place.members) * bytes / rate

    def nvls(
        self, kind: int, place: Placement, bytes: int, algorithm: str, extra: float, channels: int
    ) -> tuple[float, float]:
        """Reduction in the switch, with a tree of hosts above it for NVLS_TREE, up and down which the first round of
        chunks goes hop by hop."""
        c, local, generation = self.constants, place.most_local, self.tuner.generation
        through = 1 + 1 / local if reduces_all(kind) else 1.0
        transfer = through * bytes / (nvls_share(generation, local) * self.link)
        latency = c.nvls_base * self.link_latency
        hosts = max(1.0, local / ONE_HOST)  # every GPU heads a part of the data, so a first round has more bytes
        ramp = c.nvls_ramp * hosts * bytes / (bytes + c.nvls_ramp_half * hosts * MIB)
        if algorithm == NVLS_TREE:
            heads = min(local, place.rails)
            round = nvls_tree_round(place, channels, heads, bytes)
            latency += 2 * _levels(place) * (NVLS_TREE_NETWORK_LATENCY + extra + round / heads / self.nic)
            limit = NVLS_TREE_CHANNEL[generation][place.scale]
            rate = heads * limit * GBPS * place.members / (2 * (place.members - 1))
            transfer = max(transfer, bytes / rate)
            latency, transfer = _follow(latency, transfer, transfer * round / bytes if bytes else 0.0)
        return latency, transfer + ramp

    def p2p(
        self, part: float, peers: int, members: int, duplex: bool, nvlink: bool, far: float | None
    ) -> tuple[tuple[float, float], str, int]:
        """`peers` transfers of `part` bytes through one port: time, protocol, channels. `far`: between
        hosts, with this many us on top of NCCL's latency; None: inside one."""
        c = self.constants
        channels = p2p_channels(members, part, self.peer_channels)
        if not nvlink:
            channels = min(self.pcie_channels, channels)
        used = min(self.peer_channels, channels * peers)
        total = part * peers
        if far is not None:
            return (c.p2p_base + STEP["network", RING][2] + far, total / self.nic), SIMPLE, used
        near = (self.link_latency - 1) * (c.simple_step if nvlink else STEP["pcie", RING][2])
        port = self.link if nvlink else self.pcie
        speed = port / REFERENCE_LINK
        if part / channels <= P2P_LL_BYTES:
            return (c.p2p_ll_base + near, total / (c.p2p_ll_rate * GBPS * speed)), LL, used
        link = port * (c.fanout_share if peers > 1 else 1.0)

        def limit(rate: float) -> float:
            return min(link, used * rate * GBPS * speed) if nvlink else link  # channels never limit PCIe

        if not duplex:
            return (c.p2p_base - 2.0 + near, total / limit(c.one_way_channel)), SIMPLE, used
        rate = limit(c.duplex_channel)
        ramp = c.p2p_ramp * (rate / port) ** 2
        half = c.p2p_ramp_half * used * 2 * P2P_CHUNK_BYTES
        return (c.p2p_base + near, total / rate + ramp * total / (total + half)), SIMPLE, used

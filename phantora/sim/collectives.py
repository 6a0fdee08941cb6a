"""What a collective, or a send and its receive, costs on a cluster.

The form is that of NCCL's own tuning: latency plus bytes over bandwidth for each algorithm (ring,
tree) and protocol (LL, LL128, Simple), the cheapest of which NCCL takes. NCCL's estimates decide *which*
(its constants are public: ``src/graph/tuning.cc``, versions 2.19 to 2.28); how long it then takes
follows from constants measured on 2 and 4 H200 with torch 2.11 and NCCL 2.28.9 (device time, by
``nccl_graph.py`` and ``nccl_bw.py``). docs/collectives.md derives the formulas and lists the errors.

Units inside this module: microseconds, bytes, bytes per microsecond (1 GB/s = 1000).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

from phantora.errors import PhantoraError
from phantora.hardware import Cluster
from phantora.wire.layout import NCCL_DTYPE_NAMES, Coll

KIB, MIB = 1 << 10, 1 << 20
GBPS = 1e3  # 1 GB/s in bytes per microsecond

RING, TREE, NVLS, P2P, DIRECT = "RING", "TREE", "NVLS", "P2P", "DIRECT"
LL, LL128, SIMPLE = "LL", "LL128", "SIMPLE"


@dataclass(frozen=True)
class CollectivePrice:
    """How long an operation occupies each member's stream once all have arrived, and why."""

    duration_ns: int
    algorithm: str
    """RING, TREE, NVLS, P2P (send, receive and what is built from them) or DIRECT (nothing to move)."""
    protocol: str
    """LL, LL128 or SIMPLE."""
    channels: int
    intra_bytes: int
    """Bytes that the busiest member puts on its NVLink or PCIe port."""
    inter_bytes: int
    """Bytes that the busiest member's network port carries one way."""
    provenance: str
    """``measured`` GPU and links, ``scaled`` from them, or ``roofline`` (network, PCIe)."""


@dataclass(frozen=True)
class Constants:
    """Measured constants. Times in us, rates in GB/s, of 4 H200 at 478.1 GB/s raw NVLink per direction."""

    link_share: float = 0.7756
    """Of the raw NVLink rate: 370.8 of 478.1 GB/s, one way, the plateau of broadcast and send. NCCL's
    figure for sm_90 is the same: 18 links x 20.6 GB/s."""
    fanout_share: float = 0.93
    """Of the link when a GPU exchanges with several peers at once through the switch."""
    pcie_share: float = 0.75
    """Of a PCIe link when every GPU sends and receives through the host bridge (not measured)."""
    network_share: float = 0.97
    """Of a NIC's line rate (400 Gb/s InfiniBand: 48.5 GB/s of payload; not measured here)."""
    ll_base: float = 9.9
    ll_step: float = 0.81
    """Launch, first flag and last flag of a ring in protocol LL, and each further step."""
    ll_spread: float = 0.7
    """Cost of bringing all channels in, as data grow from one channel's share to all channels'."""
    reduce_base: float = 14.9
    gather_base: float = 16.2
    scatter_base: float = 13.7
    """The same for protocol Simple: all-reduce, all-gather, reduce-scatter."""
    simple_step: float = 3.2
    ll128_step: float = 1.8
    copy_rate: float = 1035.0
    """Rate at which a rank's own share, 1/n of the data, goes to its output in the same kernel."""
    reduce_copy_rate: float = 1875.0
    ramp: float = 62.0
    """Time lost, at most, before both directions of the links are full; half of it at `ramp_half`
    of the data that one round of all channels moves."""
    ramp_half: float = 1.9
    chain_base: float = 14.9
    chain_step: float = 0.52
    """Broadcast and reduce: chains that fill one direction only and have no ramp."""
    p2p_ll_base: float = 13.1
    p2p_ll_rate: float = 122.0
    p2p_base: float = 17.5
    p2p_ramp: float = 67.0
    p2p_ramp_half: float = 2.6
    one_way_channel: float = 22.8
    duplex_channel: float = 20.7
    """Rate of a channel that only sends, and of one that sends and receives."""
    nvls_base: float = 25.0
    nvls_share: float = 0.735
    """Of the link: 8 H100 with NVLS reach about 480 GB/s of bus bandwidth, 1.75 x 0.735 x 371."""


# NCCL's own model, from which it chooses (src/graph/tuning.cc). Latencies in us by (LL, LL128, Simple).
TUNER_BASE = {TREE: (6.8, 14.0, 8.4), RING: (6.6, 14.0, 8.4)}
TUNER_STEP = {
    ("nvlink", TREE): (0.6, 1.25, 4.0),
    ("nvlink", RING): (0.6, 1.9, 3.4),
    ("pcie", TREE): (1.0, 1.9, 4.0),
    ("pcie", RING): (1.0, 2.5, 5.7),
    ("network", TREE): (5.0, 8.5, 14.0),
    ("network", RING): (2.7, 4.0, 14.0),
}
# Highest bus bandwidth of LL in GB/s on 1, 2 and more hosts, by compute capability.
TUNER_LL_RATE = {
    7: (39.0, 39.0, 20.4),
    8: (87.7, 22.5, 19.0),
    9: (141.0, 45.0, 35.0),
    10: (282.0, 90.0, 70.0),
}
# Highest rates of one channel in GB/s: LL128 ring, and tree on 1, 2 and more hosts.
TUNER_LL128_CHANNEL = {7: 20.0, 8: 20.0, 9: 36.7, 10: 73.4}
TUNER_TREE_CHANNEL = {
    7: (26.5, 18.5, 10.0),
    8: (24.0, 23.6, 17.8),
    9: (38.7, 41.4, 36.0),
    10: (77.4, 82.8, 72.0),
}
# How far trees stay below the model, by protocol and power of two from 64 bytes on.
TREE_CORRECTION = (
    (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    (
        0.9,
        0.9,
        0.9,
        0.9,
        0.9,
        0.9,
        0.9,
        0.8,
        0.7,
        0.6,
        0.6,
        0.5,
        0.5,
        0.5,
        0.5,
        0.6,
        0.7,
        0.8,
        0.7,
        0.7,
        0.8,
        0.9,
        0.9,
    ),
)
PROTOCOLS = (LL, LL128, SIMPLE)
REFERENCE_GPU, REFERENCE_MEMBERS = "H200-SXM", 4
REFERENCE_NVLINK_NS, REFERENCE_PCIE_NS, REFERENCE_NETWORK_NS = 1000, 2500, 2500
NVLINK_CHANNELS, PCIE_CHANNELS = 24, 4  # 24 is what NCCL 2.28 takes on 4 H200
CHUNK_BYTES = 2 * MIB  # Simple: half of a channel's 4 MiB buffer
LL_THREAD_BYTES = 8 * KIB  # data with which LL uses a further channel
P2P_CHANNELS = 32  # power of two above the ring's channels
P2P_LL_BYTES = 16 * KIB  # a channel's part up to which send and receive use LL
P2P_PART_BYTES = 16 * MIB  # parts above this get more channels
P2P_CHUNK_BYTES = 512 * KIB

_KERNEL_DTYPES = {
    "int8": "u8",
    "uint8": "u8",
    "int32": "u32",
    "uint32": "u32",
    "int64": "u64",
    "uint64": "u64",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "bfloat16": "bf16",
    "float8_e4m3": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}


def kernel_name(kind: int, redop: int, dtype: int, algorithm: str, protocol: str) -> str:
    """The name of the device function, as profilers show it with NCCL 2.28.

    NCCL compiles one entry per collective and type: the name says ``Sum`` and ``LL`` whatever
    reduction (`redop`) and `protocol` run inside, and signed integers share the unsigned entry.
    """
    name = Coll.names()[kind]
    if name in ("ALL_TO_ALL", "GATHER", "SCATTER"):
        text = "SendRecv"
    elif name in ("ALL_GATHER", "BROADCAST"):
        text = "AllGather_RING_LL" if name == "ALL_GATHER" else "Broadcast_RING_LL"
    else:
        base = {"REDUCE_SCATTER": "ReduceScatter", "REDUCE": "Reduce"}.get(name, "AllReduce")
        tree = "TREE" if algorithm == TREE and base == "AllReduce" else "RING"
        text = f"{base}_Sum_{_KERNEL_DTYPES[NCCL_DTYPE_NAMES[dtype]]}_{tree}_LL"
    return f"ncclDevKernel_{text}(ncclDevKernelArgsStorage<4096ul>)"


SEND_RECV_KERNEL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def wire_share(kind: int, members: int) -> float:
    """Bytes each member sends per byte of the collective's size (nccl-tests' bus factor)."""
    name = Coll.names()[kind]
    if name in ("ALL_REDUCE", "BARRIER"):
        return 2 * (members - 1) / members
    if name in ("BROADCAST", "REDUCE"):
        return 1.0
    return (members - 1) / members


def ring_steps(kind: int, members: int) -> int:
    """Hops that follow each other around a ring of `members`."""
    return (2 if Coll.names()[kind] in ("ALL_REDUCE", "BARRIER") else 1) * (members - 1)


def p2p_channels(members: int, part: float) -> int:
    """Channels that serve one peer: 32 shared by the members, more when each would carry over 16 MiB.

    This is the step of ring send/recv on 4 GPUs: 8 channels (168 GB/s) up to 128 MiB, 16 at 256 MiB.
    """
    channels = P2P_CHANNELS
    while channels * members > P2P_CHANNELS and channels > 1:
        channels //= 2
    while part / channels > P2P_PART_BYTES and channels < P2P_CHANNELS:
        channels *= 2
    return channels


@dataclass(frozen=True)
class Placement:
    """Where the members of a communicator sit."""

    members: int
    hosts: int
    local: int
    """Members on the host that has fewest: every one of them can drive its own network port."""
    most_local: int


@dataclass
class CollectiveModel:
    """Prices the communication of one cluster."""

    cluster: Cluster
    nvls: bool = False
    """Let all-reduce inside a host use the switch's reduction, as NCCL does by default on NVSwitch."""
    constants: Constants = field(default_factory=Constants)

    def __post_init__(self) -> None:
        gpu, intra, inter = self.cluster.gpu, self.cluster.intra, self.cluster.inter
        c = self.constants
        self._nvlink = gpu.nvlink_bandwidth > 0
        share = c.link_share if self._nvlink else c.pcie_share
        self._link = intra.bandwidth * share / 1e6
        self._nic = inter.bandwidth * c.network_share / 1e6
        self._channels = NVLINK_CHANNELS if self._nvlink else PCIE_CHANNELS
        self._generation = min(max(gpu.compute_capability[0], 7), 10)
        self._speed = self._link / (370.8 * GBPS)  # rates of SMs and protocols follow the link's generation
        self._copy_speed = self._speed if self._nvlink else 1.0
        reference = REFERENCE_NVLINK_NS if self._nvlink else REFERENCE_PCIE_NS
        self._intra_latency = intra.latency_ns / reference
        self._inter_latency = (inter.latency_ns - REFERENCE_NETWORK_NS) / 1e3
        self._on_reference = gpu.name == REFERENCE_GPU
        self._collective = lru_cache(maxsize=65536)(self._price)

    # ------------------------------------------------------------------ public

    def collective(self, kind: int, ranks: tuple[int, ...], bytes: int, dtype: int) -> CollectivePrice:
        """A collective of `kind` (``wire.layout.Coll``) over global `ranks`; `bytes` as nccl-tests counts."""
        if not 0 <= dtype < len(NCCL_DTYPE_NAMES):
            last = len(NCCL_DTYPE_NAMES) - 1
            raise PhantoraError(f"collective with unknown NCCL data type {dtype}: types are 0 to {last}")
        return self._collective(kind, self._place(ranks), bytes)

    def transfer(
        self, src: int, dst: int, bytes: int, concurrent: int, members: int = 2, duplex: bool = False
    ) -> CollectivePrice:
        """A send of `bytes` from global rank `src` and its receive on `dst`.

        `concurrent` transfers share the sender's or the receiver's port; `members` is the size of the
        communicator (it decides the channels); `duplex`: both ends also move data the other way.
        """
        place = self._place((src, dst))
        duplex = duplex or concurrent > 1
        if src == dst:
            time, protocol, channels = self.constants.p2p_ll_base + bytes / (2000 * GBPS), SIMPLE, 1
        else:
            time, protocol, channels = self._p2p(bytes, concurrent, max(members, 2), duplex, place.hosts > 1)
        moved = bytes if src != dst else 0
        near, far = (0, moved) if place.hosts > 1 else (moved, 0)
        return self._finish(time, P2P, protocol, channels, place, near, far)

    # ------------------------------------------------------------------ placement and assembly

    def _place(self, ranks: tuple[int, ...]) -> Placement:
        count: dict[int, int] = {}
        for rank in ranks:
            host = rank // self.cluster.gpus_per_host
            count[host] = count.get(host, 0) + 1
        return Placement(len(ranks), len(count), min(count.values()), max(count.values()))

    def _finish(
        self,
        time: float,
        algorithm: str,
        protocol: str,
        channels: int,
        place: Placement,
        intra: float,
        inter: float,
    ) -> CollectivePrice:
        provenance = "roofline"
        if self._nvlink and place.hosts == 1:
            provenance = "measured" if self._on_reference and place.members <= REFERENCE_MEMBERS else "scaled"
        return CollectivePrice(
            max(1, round(time * 1e3)), algorithm, protocol, channels, round(intra), round(inter), provenance
        )

    def _price(self, kind: int, place: Placement, bytes: int) -> CollectivePrice:
        name = Coll.names()[kind]
        if place.members == 1:
            copied = bytes / (self.cluster.gpu.hbm_bandwidth / 2e6)
            return self._finish(1.5 + copied, DIRECT, SIMPLE, 1, place, 0, 0)
        if name == "ALL_TO_ALL":
            return self._all_to_all(place, bytes)
        if name in ("GATHER", "SCATTER"):
            return self._rooted(place, bytes)
        if self.nvls and name == "ALL_REDUCE" and place.hosts == 1 and place.members > 2 and self._nvlink:
            nvls = self.constants.nvls_base + bytes / (self.constants.nvls_share * self._link)
            if nvls < self._ring(kind, place, bytes, self._choose(kind, place, bytes)[1]):
                return self._finish(nvls, NVLS, SIMPLE, 16, place, bytes, 0)
        algorithm, protocol = self._choose(kind, place, bytes)
        time = (self._tree if algorithm == TREE else self._ring)(kind, place, bytes, protocol)
        wire = wire_share(kind, place.members) * bytes
        # A ring enters and leaves each host once per channel, spread over the host's ports.
        inter = wire / place.local if place.hosts > 1 else 0.0
        intra = wire if place.hosts == 1 or place.most_local > 1 else 0.0
        return self._finish(time, algorithm, protocol, self._channels, place, intra, inter)

    # ------------------------------------------------------------------ rings and trees

    def _bus(self, place: Placement) -> float:
        """Rate at which each member passes data on around the ring, bytes per us."""
        if place.hosts == 1:
            return self._link
        ports = self._nic * place.local
        return ports if place.most_local == 1 else min(self._link, ports)

    def _intra_kind(self) -> str:
        return "nvlink" if self._nvlink else "pcie"

    def _inter_steps(self, kind: int, place: Placement) -> int:
        return ring_steps(kind, place.hosts) if place.hosts > 1 else 0

    def _choose(self, kind: int, place: Placement, bytes: int) -> tuple[str, str]:
        """Algorithm and protocol that NCCL's own estimate finds cheapest."""
        best, choice = math.inf, (RING, SIMPLE)
        for algorithm in (RING, TREE):
            if algorithm == TREE and Coll.names()[kind] != "ALL_REDUCE":
                continue
            for index, protocol in enumerate(PROTOCOLS):
                if protocol == LL128 and not self._nvlink:
                    continue
                time = self._estimate(kind, place, bytes, algorithm, index)
                if time < best:
                    best, choice = time, (algorithm, protocol)
        return choice

    def _estimate(self, kind: int, place: Placement, bytes: int, algorithm: str, protocol: int) -> float:
        """NCCL's own estimate of the time, in us."""
        n, spread = place.members, min(place.hosts, 3) - 1
        bus = self._bus(place)
        ll_rate = TUNER_LL_RATE[self._generation][spread] * GBPS
        ll128_rate = TUNER_LL128_CHANNEL[self._generation] * GBPS * self._channels
        if algorithm == RING:
            rate = (min(ll_rate, bus / 2), min(bus * 0.92, ll128_rate), bus)[protocol] / wire_share(kind, n)
        else:
            rate = self._tree_rate(place, bytes, protocol)
        return self._tuner_latency(kind, place, bytes, algorithm, protocol) + bytes / rate

    def _tree_rate(self, place: Placement, bytes: int, protocol: int) -> float:
        """Data that a tree reduces and spreads per us."""
        spread = min(place.hosts, 3) - 1
        channels = TUNER_TREE_CHANNEL[self._generation][spread] * GBPS * self._channels
        rate = min(self._bus(place) * 0.92, channels)
        ll128_share = 7 / 9 if place.hosts == 1 else 120 / 128
        ll_rate = TUNER_LL_RATE[self._generation][spread] * GBPS
        rate = (min(rate / 3.8, ll_rate), rate * ll128_share, rate)[protocol]
        return rate / 2 * TREE_CORRECTION[protocol][min(max(bytes >> 6, 1).bit_length() - 1, 22)]

    def _tuner_latency(self, kind: int, place: Placement, bytes: int, algorithm: str, protocol: int) -> float:
        intra = TUNER_STEP[self._intra_kind(), algorithm][protocol]
        inter = TUNER_STEP["network", algorithm][protocol]
        if algorithm == TREE:
            steps = (place.most_local - 1) * intra + math.ceil(math.log2(place.hosts)) * inter
            return TUNER_BASE[TREE][protocol] + 2 * steps
        between = self._inter_steps(kind, place)
        latency = TUNER_BASE[RING][protocol]
        latency += (ring_steps(kind, place.members) - between) * intra + between * inter
        plateau = place.hosts > 1 and PROTOCOLS[protocol] == SIMPLE and Coll.names()[kind] == "ALL_REDUCE"
        if plateau and bytes / (self._channels * place.members) >= 64:
            latency *= 1.4  # NCCL: "plateau effect of ring"
        return latency

    def _network_steps(self, kind: int, place: Placement, protocol: str, algorithm: str = RING) -> float:
        """Time of the hops between hosts."""
        step = TUNER_STEP["network", algorithm][PROTOCOLS.index(protocol)] + self._inter_latency
        if algorithm == TREE:
            return 2 * math.ceil(math.log2(place.hosts)) * step
        return self._inter_steps(kind, place) * step

    def _ring(self, kind: int, place: Placement, bytes: int, protocol: str) -> float:
        c, n, bus = self.constants, place.members, self._bus(place)
        name = Coll.names()[kind]
        wire = wire_share(kind, n) * bytes
        near = (ring_steps(kind, n) - self._inter_steps(kind, place)) * self._intra_latency
        far = self._network_steps(kind, place, protocol)
        chain = name in ("BROADCAST", "REDUCE")
        if protocol == LL:
            channels = min(self._channels, max(1.0, bytes / LL_THREAD_BYTES))
            spread = c.ll_spread * math.log(channels) / math.log(self._channels)
            rate = bus / 2  # every 8-byte word carries 4 bytes of data
            if place.hosts > 1:
                rate = min(rate, TUNER_LL_RATE[self._generation][min(place.hosts, 3) - 1] * GBPS)
            return c.ll_base + near * (c.chain_step if chain else c.ll_step) + far + spread + wire / rate
        bus *= 0.92 if protocol == LL128 and place.hosts > 1 else 1.0  # 120 of 128 bytes are data
        if chain:
            return c.chain_base + near * c.chain_step + far + wire / bus
        reduces = name in ("ALL_REDUCE", "BARRIER")
        base = c.reduce_base if reduces else c.gather_base if name == "ALL_GATHER" else c.scatter_base
        own = bytes / n / ((c.reduce_copy_rate if reduces else c.copy_rate) * GBPS * self._copy_speed)
        slow = self._link / bus  # a ring that waits for the network fills its links as slowly
        half = c.ramp_half * n * self._channels * CHUNK_BYTES
        near *= c.ll128_step if protocol == LL128 else c.simple_step
        return base + near + far + wire / bus + own + slow * c.ramp * bytes / (bytes + half)

    def _tree(self, kind: int, place: Placement, bytes: int, protocol: str) -> float:
        """All-reduce up and down a tree of hosts with a chain inside each."""
        c, index = self.constants, PROTOCOLS.index(protocol)
        step = (c.ll_step, c.ll128_step, c.simple_step)[index]
        near = 2 * (place.most_local - 1) * self._intra_latency * step
        base = c.ll_base if protocol == LL else c.reduce_base
        far = self._network_steps(kind, place, protocol, TREE)
        return base + near + far + bytes / self._tree_rate(place, bytes, index)

    # ------------------------------------------------------------------ sends and receives

    def _p2p(
        self, part: float, peers: int, members: int, duplex: bool, network: bool
    ) -> tuple[float, str, int]:
        """Time of `peers` transfers of `part` bytes through one port, with protocol and channels."""
        c = self.constants
        channels = p2p_channels(members, part)
        if not self._nvlink:
            channels = min(PCIE_CHANNELS, channels)
        used = min(P2P_CHANNELS, channels * peers)
        total = part * peers
        if network:
            far = TUNER_STEP["network", RING][2] + self._inter_latency
            return c.p2p_base + far + total / self._nic, SIMPLE, used
        near = (self._intra_latency - 1) * (c.simple_step if self._nvlink else TUNER_STEP["pcie", RING][2])
        if part / channels <= P2P_LL_BYTES:
            return c.p2p_ll_base + near + total / (c.p2p_ll_rate * GBPS * self._speed), LL, used
        link = self._link * (c.fanout_share if peers > 1 else 1.0)
        if not duplex:
            rate = min(link, used * self._channel_rate(c.one_way_channel))
            return c.p2p_base - 2.0 + near + total / rate, SIMPLE, used
        rate = min(link, used * self._channel_rate(c.duplex_channel))
        ramp = c.p2p_ramp * (rate / self._link) ** 2
        half = c.p2p_ramp_half * used * 2 * P2P_CHUNK_BYTES
        return c.p2p_base + near + total / rate + ramp * total / (total + half), SIMPLE, used

    def _channel_rate(self, rate: float) -> float:
        """A channel's rate in bytes per us; it never limits a PCIe port."""
        return rate * GBPS * self._speed if self._nvlink else math.inf

    def _all_to_all(self, place: Placement, bytes: int) -> CollectivePrice:
        part = bytes / place.members
        near_peers, far_peers = place.most_local - 1, place.members - place.local
        times: list[tuple[float, str, int]] = []
        if near_peers:
            times.append(self._p2p(part, near_peers, place.members, True, False))
        if place.hosts > 1:
            times.append(self._p2p(part, far_peers, place.members, True, True))
        time, protocol, channels = max(times)
        inter = part * far_peers if place.hosts > 1 else 0.0
        return self._finish(time, P2P, protocol, channels, place, part * near_peers, inter)

    def _rooted(self, place: Placement, bytes: int) -> CollectivePrice:
        """Gather and scatter: everything passes the root's ports."""
        part = bytes / place.members
        near_peers, far_peers = place.most_local - 1, place.members - place.most_local
        times: list[tuple[float, str, int]] = []
        if near_peers:
            times.append(self._p2p(part, near_peers, place.members, False, False))
        if far_peers:
            times.append(self._p2p(part, far_peers, place.members, False, True))
        time, protocol, channels = max(times)
        return self._finish(time, P2P, protocol, channels, place, part * near_peers, part * far_peers)

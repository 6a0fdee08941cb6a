"""NCCL's choice of algorithm and protocol: the least of its own estimates of the time.

The form and the constants are those of NCCL 2.27 and 2.28, ``src/graph/tuning.cc`` (latencies, limits per
channel), ``search.cc`` (speeds that a channel may have) and ``nvls.cc``. The estimate only *chooses*; how
long it then takes is `timing`'s matter. CollNet (reduction in InfiniBand switches) is off in NCCL unless
``NCCL_COLLNET_ENABLE=1`` and a plug-in; it is not simulated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from phantora.sim.collectives.environment import NcclEnvironment
from phantora.wire.layout import Coll

GBPS = 1e3  # 1 GB/s in bytes per microsecond

RING, TREE, NVLS, NVLS_TREE, PAT = "RING", "TREE", "NVLS", "NVLS_TREE", "PAT"
P2P, DIRECT = "P2P", "DIRECT"
LL, LL128, SIMPLE = "LL", "LL128", "SIMPLE"
PROTOCOLS = (LL, LL128, SIMPLE)
LL128_DATA = 120 / 128  # of what LL128 sends,
LL128_SHARE = 0.92  # and of the bandwidth that NCCL expects of it, and of trees

# Latencies in us by (LL, LL128, Simple).
BASE = {TREE: (6.8, 14.0, 8.4), RING: (6.6, 14.0, 8.4)}
STEP = {
    ("nvlink", TREE): (0.6, 1.25, 4.0),
    ("nvlink", RING): (0.6, 1.9, 3.4),
    ("pcie", TREE): (1.0, 1.9, 4.0),
    ("pcie", RING): (1.0, 2.5, 5.7),
    ("network", TREE): (5.0, 8.5, 14.0),
    ("network", RING): (2.7, 4.0, 14.0),
}
NVLS_LATENCY, NVLS_TREE_NETWORK_LATENCY = 25.0, 20.9
# A ring over the network posts every step: at least so long, in us, on hosts with Intel CPUs; Simple: 3 x.
NETWORK_OVERHEAD = {"intel": 1.0, "amd": 2.0}
# Highest bus bandwidth of LL in GB/s on 1, 2 and more hosts: on one host by compute capability (7, 8, 9,
# 10), on several by the CPU, whose rows NCCL calls 7 (Intel) and 8 (AMD).
LL_RATE = {7: (39.0, 39.0, 20.4), 8: (87.7, 22.5, 19.0), 9: (141.0, 45.0, 35.0), 10: (282.0, 90.0, 70.0)}
CPU_ROW = {"intel": 7, "amd": 8}
# Highest rates of one channel in GB/s on 1, 2 and more hosts, by compute capability.
LL128_RING_CHANNEL = {7: 20.0, 8: 20.0, 9: 36.7, 10: 40.0}
LL128_TREE_CHANNEL = {7: (20.0, 20.0, 20.0), 8: (20.0, 20.0, 20.0), 9: (36.7, 36.7, 29.0), 10: (55.6, 31.67, 20.0)}
TREE_CHANNEL = {7: (26.5, 18.5, 10.0), 8: (24.0, 23.6, 17.8), 9: (38.7, 41.4, 36.0), 10: (70.0, 42.8, 24.0)}
LARGEST_HOST = 16
"""GPUs. All-reduces over 20 racks of 72 have latency and rate of rings in the published proportion
(github.com/coreweave/nccl-tests/pull/48), so racks have no tree over switches."""
NVLS_TREE_CHANNEL = {9: (0.0, 57.7, 45.5), 10: (0.0, 96.0, 80.0)}
NVLS_EFFICIENCY = {9: 0.85, 10: 0.74}
PAT_BASE, PAT_MEMBER, PAT_OVERLAP, PAT_SHARE = 8.0, 2.8, 3.5, 0.75  # us, us per member; of a hop; of the rate
HOPPER_TREE = 0.85  # from sm_90 on a host's trees all hang on one GPU per channel
# How far trees stay below the model, by protocol and power of two from 64 bytes on.
TREE_CORRECTION = (
    (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
)
# Speeds that a channel may have, GB/s: within a host, and where hosts' NICs take part.
SPEEDS_NEAR = {
    8: (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
    9: (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
    10: (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18),
}
SPEEDS_FAR = {
    8: (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12),
    9: (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
    10: (96, 80, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
}


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
    return (2 if reduces_all(kind) else 1) * (members - 1)


def reduces_all(kind: int) -> bool:
    """True if every member gets the reduced values."""
    return Coll.names()[kind] in ("ALL_REDUCE", "BARRIER")


@dataclass(frozen=True)
class Placement:
    """Places of the members of a communicator."""

    members: int
    hosts: int
    rails: int
    """NICs that every host's members can drive, on the host where they are fewest."""
    most_local: int
    """Members on the host that has most."""
    nvlink: bool
    """NVLink joins the members of each host, one after the other."""

    @property
    def scale(self) -> int:
        """0, 1, 2: one host, two, more."""
        return min(self.hosts, 3) - 1


@dataclass(frozen=True)
class Choice:
    """NCCL's choice: ``RING``, ``TREE`` ... and ``LL``, ``LL128``, ``SIMPLE``."""

    algorithm: str
    protocol: str


@dataclass(frozen=True, kw_only=True)
class Tuner:
    """Chooses for one cluster. `link`, `pcie`, `nic`: a GPU's NVLink port, its PCIe port and a NIC, bytes/us."""

    generation: int
    """Major compute capability, 7 to 10."""
    link: float
    pcie: float
    nic: float
    switch: bool
    """GPUs meet in an NVSwitch that reduces (sm_90 and later)."""
    cpu: str = "intel"
    environment: NcclEnvironment = field(default_factory=NcclEnvironment)

    def choose(self, kind: int, place: Placement, channels: int, bytes: int) -> Choice:
        """The cheapest choice by NCCL's own estimate."""
        name = Coll.names()[kind]
        candidates = [(RING, index) for index in range(3)]
        if reduces_all(kind):
            candidates += [(TREE, index) for index in range(3)]
        if name in ("ALL_GATHER", "REDUCE_SCATTER") and 1 < place.hosts == place.members:
            candidates.append((PAT, 2))
        if name in ("ALL_REDUCE", "ALL_GATHER", "REDUCE_SCATTER") and self.has_nvls(place):
            if place.hosts == 1:
                candidates.append((NVLS, 2))
            elif name == "ALL_REDUCE" and place.most_local <= LARGEST_HOST:
                candidates.append((NVLS_TREE, 2))
        allowed = [
            (algorithm, index)
            for algorithm, index in candidates
            if (PROTOCOLS[index] != LL128 or place.nvlink or self.environment.protocol_asked(name, LL128))
            and self.environment.allows(name, algorithm, PROTOCOLS[index])
        ]
        # NCCL falls back on rings when what was asked for does not exist for a collective.
        algorithm, index = min(
            allowed or candidates[:3],
            key=lambda way: (
                self.latency(kind, place, channels, bytes, *way) + bytes / self.rate(kind, place, channels, bytes, *way)
            ),
        )
        return Choice(algorithm, PROTOCOLS[index])

    def has_nvls(self, place: Placement) -> bool:
        """True if NCCL can use NVLink SHARP: it needs a switch, three GPUs of a host, and a generation that has it."""
        return self.switch and self.environment.nvls and place.most_local > 2 and self.generation in NVLS_EFFICIENCY

    def latency(self, kind: int, place: Placement, channels: int, bytes: int, algorithm: str, protocol: int) -> float:
        """NCCL's estimate of what does not depend on the size, in us."""
        if algorithm == NVLS:
            return NVLS_LATENCY
        if algorithm == NVLS_TREE:
            return NVLS_LATENCY + 2 * int(math.log2(place.hosts)) * NVLS_TREE_NETWORK_LATENCY
        if algorithm == PAT:
            hop = STEP["network", TREE][protocol] / PAT_OVERLAP
            return PAT_BASE + int(math.log2(place.hosts)) * hop + place.members * PAT_MEMBER
        near = STEP["nvlink" if place.nvlink else "pcie", algorithm][protocol]
        far = STEP["network", TREE if place.most_local == 1 else algorithm][protocol]
        if algorithm == TREE:
            per_host = place.members // place.hosts
            return BASE[TREE][protocol] + 2 * ((per_host - 1) * near + int(math.log2(place.hosts)) * far)
        if Coll.names()[kind] in ("BROADCAST", "REDUCE"):  # a pipeline, whose steps overlap
            return BASE[RING][protocol] + (far if place.hosts > 1 else near)
        between = ring_steps(kind, place.hosts)
        if place.hosts > 1:
            near = max(near, self.overhead(protocol))
        latency = BASE[RING][protocol] + (ring_steps(kind, place.members) - between) * near + between * far
        plateau = place.hosts > 1 and PROTOCOLS[protocol] == SIMPLE and reduces_all(kind)
        if plateau and bytes / (channels * place.members) >= 64:
            latency *= 1.9 if self.generation < 8 else 1.4  # "plateau effect of ring"
        return latency

    def overhead(self, protocol: int) -> float:
        """Least time of a step of a ring that crosses hosts, us."""
        return NETWORK_OVERHEAD[self.cpu] * (3 if PROTOCOLS[protocol] == SIMPLE else 1)

    def ll_rate(self, place: Placement) -> float:
        """Highest bus bandwidth of LL."""
        row = self.generation if place.hosts == 1 else CPU_ROW[self.cpu]
        return LL_RATE[row][place.scale] * GBPS

    def bus(self, place: Placement) -> float:
        """NCCL's value for the bandwidth of all its channels."""
        if place.hosts == 1:
            return self.near_bus(place)
        ports = place.rails * _highest(SPEEDS_FAR[self._row], self.nic / GBPS) * GBPS
        local = place.most_local
        return ports if local == 1 else min(self._near(place) * local / (local - 1), ports)

    def near_bus(self, place: Placement) -> float:
        """Bandwidth inside a host: as many channels of one of the speeds as the link holds."""
        whole = self._near(place) / GBPS
        return max(math.floor(whole / speed) * speed for speed in SPEEDS_NEAR[self._row]) * GBPS or whole * GBPS

    def _near(self, place: Placement) -> float:
        return self.link if place.nvlink else self.pcie

    @property
    def _row(self) -> int:
        """Row of the tables of speeds, which begin with sm_80."""
        return max(self.generation, 8)

    def rate(self, kind: int, place: Placement, channels: int, bytes: int, algorithm: str, protocol: int) -> float:
        """NCCL's estimate of bytes of the collective per us."""
        if algorithm in (NVLS, NVLS_TREE):
            return self.nvls_rate(kind, place, algorithm)
        if algorithm == TREE:
            return self.tree_rate(place, channels, bytes, protocol)
        bus = self.bus(place)
        if algorithm == PAT:
            return bus * PAT_SHARE
        if PROTOCOLS[protocol] == LL:
            bus = min(self.ll_rate(place), bus / 2)
        elif PROTOCOLS[protocol] == LL128:
            bus = min(bus * LL128_SHARE, channels * LL128_RING_CHANNEL[self.generation] * GBPS)
        return bus / wire_share(kind, place.members)

    def tree_rate(self, place: Placement, channels: int, bytes: int, protocol: int) -> float:
        """Data that a tree reduces and spreads per us."""
        scale, name = place.scale, PROTOCOLS[protocol]
        # Between two hosts a tree sends half of what a ring does: there NCCL counts on NVLink alone.
        bus = self.bus(place) if place.hosts > 2 else self.near_bus(place)
        rate = min(bus * LL128_SHARE, channels * TREE_CHANNEL[self.generation][scale] * GBPS)
        if name == LL:
            rate = min(rate / 3.8, self.ll_rate(place))
        elif name == LL128:
            limit = channels * LL128_TREE_CHANNEL[self.generation][scale] * GBPS
            rate = min(rate * (7 / 9 if place.hosts == 1 else LL128_DATA), limit)
        rate *= HOPPER_TREE if self.generation >= 9 else 1.0
        power = max(bytes >> 6, 1).bit_length() - 1
        return rate / 2 * (TREE_CORRECTION[protocol][power] if power < len(TREE_CORRECTION[protocol]) else 1.0)

    def tree_channel(self, place: Placement) -> float:
        """Bytes that a channel of a tree passes on per us, at most."""
        share = HOPPER_TREE if self.generation >= 9 else 1.0
        return TREE_CHANNEL[self.generation][place.scale] * share * GBPS

    def nvls_rate(self, kind: int, place: Placement, algorithm: str) -> float:
        """Reduction in the NVSwitch: each GPU heads one channel; trees join hosts."""
        heads = min(place.most_local, place.rails) if algorithm == NVLS_TREE else place.most_local
        near = _highest(SPEEDS_NEAR[self.generation], self.link / GBPS / heads)
        near *= NVLS_EFFICIENCY[self.generation] * (heads - 1) / heads
        near *= 2 if reduces_all(kind) else (place.most_local - 1) / place.most_local
        if algorithm == NVLS_TREE:
            far = _highest(SPEEDS_FAR[self.generation], self.nic / GBPS) * (2 if place.hosts == 2 else 1)
            near = min(near, far, NVLS_TREE_CHANNEL[self.generation][place.scale])
        ratio = place.members / ring_steps(kind, place.members) if reduces_all(kind) else 1.0
        return max(heads * near * GBPS * ratio, 1e-9)


def _highest(speeds: tuple[float, ...], limit: float) -> float:
    return next((speed for speed in speeds if speed <= limit), speeds[-1])

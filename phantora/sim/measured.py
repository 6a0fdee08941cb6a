"""Prices of a real run's launches: their measured durations, scaled from the run's cluster to the simulated one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from phantora.cost.kernel_names import class_of_kernel
from phantora.cost.scaling import BY_MODEL
from phantora.cost.types import CostModel, Price
from phantora.hardware import Cluster, Topology
from phantora.hardware.types import Gpu
from phantora.sim.collectives import CollectiveModel, CollectivePrice, NcclEnvironment
from phantora.trace.schema import REAL
from phantora.wire.layout import SAME_TIME

SCALED = "scaled"
_BY_ARITHMETIC = BY_MODEL | {"convolution"}
_FIXED = "RECORDED"  # algorithm of a transfer whose bytes are unknown
_ROUNDING = 1e-3  # a ratio this close to 1 is 1


@dataclass(frozen=True)
class Took:
    """Duration of a communication in a real run."""

    ns: int
    crowd: float
    """Number of communications on its links at the same time, itself included."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Place of a recording's measurements, and the time that streams add to durations."""

    cluster: Cluster
    cost: CostModel
    """Prices of its GPU."""
    nccl: NcclEnvironment
    known: bool
    """The cluster's GPU has prices; else durations are not scaled."""
    launch_latency_ns: int
    kernel_gap_ns: int

    def by_name(self, price: Price, kernel: str, gpu: Gpu) -> Price:
        """`price` of a kernel of which nothing but its name is known: on `gpu` it takes its measured time, in the ratio
        of the GPUs' arithmetic or memory, whichever its class waits for. The other ratio gives its error."""
        own, cls = self.cluster.gpu, class_of_kernel(kernel)
        memory, arithmetic = own.hbm_bandwidth / gpu.hbm_bandwidth, _peak(own) / _peak(gpu)
        ratio, other = (arithmetic, memory) if cls in _BY_ARITHMETIC else (memory, arithmetic)
        return replace(
            price,
            durations=tuple(max(1, round(ratio * SAME_TIME)) for _ in price.durations),
            cls=cls,
            provenance=SCALED,
            error=max(ratio, other) / min(ratio, other) - 1,
        )

    @cached_property
    def collectives(self) -> CollectiveModel:
        """Prices of its links."""
        return CollectiveModel(self.cluster, self.nccl)

    def ratio(self, here: Price, there: Callable[[], Price]) -> Price:
        """`here`, the price on the simulated GPU, with durations as ratios to those on the run's GPU, in units of
        1 / SAME_TIME. `there` gives the price on that GPU."""
        if here.provenance == REAL:
            return replace(here, durations=(SAME_TIME,) * len(here.durations))
        before = there()
        ratios = [now / max(1, old) for now, old in zip(here.durations, before.durations, strict=True)]
        errors = [price.error for price in (here, before) if price.error is not None]
        return replace(
            here,
            durations=tuple(max(1, round(ratio * SAME_TIME)) for ratio in ratios),
            provenance=SCALED,
            error=max(errors, default=None),
        )


def _peak(gpu: Gpu) -> float:
    return gpu.peak_flops["bfloat16"]


def as_measured(price: CollectivePrice, took: Took, before: CollectivePrice, topology: Topology) -> CollectivePrice:
    """`price` times the ratio of what an operation took to `before`, its price on the run's links, of `topology`. What
    it lost there to others on its links is taken off."""
    crowded = max(1.0, took.crowd * _most_used(before, topology))
    factor = took.ns / crowded / max(1, before.duration_ns)
    same = abs(price.duration_ns / max(1, before.duration_ns) - 1) < _ROUNDING
    return replace(
        price,
        duration_ns=round(price.duration_ns * factor),
        latency_ns=round(price.latency_ns * factor),
        flows=tuple(replace(flow, bytes=flow.bytes * factor) for flow in price.flows),
        provenance=REAL if same else SCALED,
        own_error=0.0 if same else price.error,
    )


def _most_used(price: CollectivePrice, topology: Topology) -> float:
    """The share of its bandwidth that an operation by itself takes of a link, of the link where that is most."""
    used: dict[int, float] = {}
    for flow in price.flows:
        for link in flow.links:
            used[link] = used.get(link, 0.0) + flow.count * flow.rate
    return max((rate / topology.links[link].bandwidth for link, rate in used.items()), default=0.0)


def fixed(measured_ns: int) -> CollectivePrice:
    """The price of a transfer of unknown bytes: the time that it took."""
    return CollectivePrice(
        duration_ns=measured_ns,
        latency_ns=measured_ns,
        flows=(),
        algorithm=_FIXED,
        protocol="",
        channels=0,
        provenance=REAL,
        own_error=0.0,
    )

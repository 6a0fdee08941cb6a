"""Parameters of a job's duration. Times are seconds unless a name has another unit."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, sqrt

from phantora.json_data import Seconds

HOUR, DAY = 3600.0, 86400.0

# Llama 3 405B (arXiv 2407.21783, table 5): 419 unexpected interruptions in 54 days on 16,384 GPUs of 2,048 hosts. GPUs,
# their memory and NVLink caused 58.7 % of them.
_GPU_HOURS, _INTERRUPTIONS, _BY_GPUS = 54 * 24 * 16384, 419, 0.587
GPU_MTBF_HOURS = _GPU_HOURS / (_INTERRUPTIONS * _BY_GPUS)
"""Hours of one GPU between failures."""
HOST_MTBF_HOURS = _GPU_HOURS / 8 / (_INTERRUPTIONS * (1 - _BY_GPUS))
"""Hours of one host of 8 GPUs between failures of anything else: network, software, CPUs, disks."""
MTBF_HOURS = round(GPU_MTBF_HOURS), round(HOST_MTBF_HOURS)
"""Both, as whole hours."""
WRITTEN, COPIED, REPLICATED = MODELS = "sync", "async", "memory"
"""Models of checkpoints. Training stops until all is written; or until it is copied to the host, and a thread writes it
after that; or until it is copied to the memory of another host, from which a new host reads it."""
SNAPSHOT = 2.0
"""Seconds of a copy to host memory where nothing is known: 100 GB of a GPU's state over PCIe 5."""
CHECKPOINT, RESTART = 30.0, 600.0
"""Seconds of a stop for a checkpoint, and from a failure to the first step, where nothing is known."""


@dataclass(frozen=True, kw_only=True)
class Machines:
    """The GPUs of a job and how often they fail."""

    gpus: int
    gpus_per_host: int = 8
    gpu_mtbf_hours: float = GPU_MTBF_HOURS
    host_mtbf_hours: float = HOST_MTBF_HOURS
    spares: int | None = None
    """Hosts that take the place of failed ones; None: always enough."""
    repair: Seconds = DAY
    """Until a failed host is back."""
    reclaims: float = 0.0
    """Share of the hosts that a provider takes back in an hour (spot instances)."""
    notice: Seconds = 0.0
    """From the announcement of a reclaim to the end of the host."""
    spread: float = 0.0
    """Relative standard deviation of the speeds of GPUs. A step takes as long as the slowest GPU."""

    @property
    def hosts(self) -> int:
        """Hosts of the job."""
        return -(-self.gpus // self.gpus_per_host)

    @property
    def mtbf(self) -> float:
        """Seconds between stops of the job: any failure and any reclaim of a host stops it."""
        return HOUR / (self._failures + self.hosts * self.reclaims)

    @property
    def reclaimed(self) -> float:
        """Share of the stops that are reclaims."""
        return self.hosts * self.reclaims * self.mtbf / HOUR

    @property
    def _failures(self) -> float:
        return self.gpus / self.gpu_mtbf_hours + self.hosts / self.host_mtbf_hours


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints of a job."""

    cost: Seconds
    """Training stops for so long."""
    interval: Seconds
    """Training time between two checkpoints."""
    lag: Seconds = 0.0
    """Time from the end of the stop until the checkpoint is safe (an asynchronous write)."""
    model: str = WRITTEN
    """One of :data:`MODELS`."""
    persisted: Seconds = HOUR
    """:data:`REPLICATED`: training time between the checkpoints that go to storage as well."""


@dataclass(frozen=True)
class Job:
    """A training run."""

    work: Seconds
    """Time of the training without failures, checkpoints and stragglers."""
    machines: Machines
    checkpoints: Checkpoints
    restart: Seconds
    """Time from a failure to the first step after it: detection, new hosts, start, compilation, the checkpoint's
    read."""
    error: tuple[float, float] = (0.0, 0.0)
    """Relative error bars of the step time below and above: 9 in 10 cases lie between."""


def mtbf_of_losses(machines: Machines, saves: Checkpoints) -> float:
    """Seconds between stops that lose work: reclaims that leave time for a checkpoint do not."""
    if saves.cost + saves.lag > machines.notice:
        return machines.mtbf
    return machines.mtbf / (1.0 - machines.reclaimed) if machines.reclaimed < 1.0 else float("inf")


def expected_time(work: float, interval: float, cost: float, restart: float, mtbf: float) -> float:
    """Mean time of a job with exponential failures at any time, also in checkpoints and restarts.

    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", 2006, equation 20."""
    return mtbf * exp(restart / mtbf) * (exp((interval + cost) / mtbf) - 1.0) * work / interval


def young_interval(cost: float, mtbf: float) -> float:
    """J. W. Young, "A first order approximation to the optimum checkpoint interval", 1974."""
    return sqrt(2.0 * cost * mtbf)


def best_interval(cost: float, restart: float, mtbf: float) -> float:
    """The interval of the least :func:`expected_time`, by ternary search around Young's. Without a cost, a second."""
    low, high = 1.0, max(2.0, 20.0 * young_interval(max(cost, 1e-3), mtbf))
    high = min(high, 50.0 * mtbf)
    for _ in range(100):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        if expected_time(1.0, left, cost, restart, mtbf) < expected_time(1.0, right, cost, restart, mtbf):
            high = right
        else:
            low = left
    return low


def spares_for(machines: Machines, share: float = 0.999) -> int:
    """Spare hosts with which `share` of the failures find one: failures in a repair time are Poisson-distributed."""
    mean = machines.repair / machines.mtbf
    if mean > 500:  # nearly normal
        return int(mean + 3.1 * sqrt(mean)) + 1
    probability = total = exp(-mean)
    spares = 0
    while total < share:
        spares += 1
        probability *= mean / spares
        total += probability
    return spares + 1

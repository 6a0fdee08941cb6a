"""Effects of kernels on a GPU: their power, and the slowdown between them and communication.

Interference is what a kernel loses to concurrent communication; communication slowdown is what communication loses to
concurrent kernels. Every number comes from the GPU's data file.
"""

from __future__ import annotations

import random
from math import ceil
from statistics import NormalDist

from phantora.cost.machine import Machine
from phantora.cost.power import burst_clock, watts
from phantora.cost.types import Price
from phantora.fold.mesh import Fold
from phantora.fold.pipelines import pipelines_of
from phantora.hardware.types import Cluster, Gpu
from phantora.sim.engine.library import Engine, KernelProfile, PowerLimit


def limit_power(engine: Engine, cluster: Cluster, world_size: int, fold: Fold | None = None) -> None:
    """Gives the engine the power limits, and the power factor of each rank's GPU.

    GPUs of a model differ. A job is taken to have the quantiles of their distribution, assigned to the ranks in an
    order that depends on nothing but their number; a single GPU is the median. In a folded run a process has the
    largest factor of those that it stands for: they wait for the slowest of them. Pipelines do so once a step alone,
    so in the end their processes have the factors of the slowest one, which the engine finds by the stages' loads.
    """
    limits = [limit_of(part.gpu) for part in cluster.parts]
    for kind, limit in enumerate(limits):
        engine.set_power(limit, kind)
    order = list(range(world_size))
    random.Random(world_size).shuffle(order)
    factors = [0.0] * world_size
    for place, rank in enumerate(order):
        spread = cluster.parts[cluster.kind_of(rank // cluster.gpus_per_host)].gpu.power.spread
        factors[rank] = 1.0 + spread * NormalDist().inv_cdf((place + 0.5) / world_size)
    pipelines = pipelines_of(fold, factors) if fold and limits[0].budget_watts > 0 else []
    for pipeline in pipelines:
        engine.add_pipeline(pipeline.ranks, pipeline.stages, pipeline.factors)
    if not pipelines:
        largest: dict[int, float] = {}
        for rank in order:  # ascending
            largest[fold.process_of(rank) if fold else rank] = factors[rank]
        for rank, factor in largest.items():
            engine.set_power_factor(rank, factor)


def limit_of(gpu: Gpu) -> PowerLimit:
    """The power limit of a GPU, as the engine takes it."""
    power, cap = gpu.power, float(gpu.power_watts)
    return PowerLimit(
        budget_watts=(gpu.limit_watts or cap) - power.idle * cap,
        exponent=power.exponent,
        communication_watts=power.communication * cap,
        communication_blocks=gpu.calibration.nccl_channels,
        response_ns=power.response_ns,
        reaction_ns=power.reaction_ns,
        lowest_clock=power.lowest_clock,
        idle_watts=power.idle * cap,
        resting_watts=power.resting * cap,
    )


def profile_of(machine: Machine, price: Price) -> KernelProfile:
    """The engine's view of the kernels of `price`."""
    gpu, power = machine.gpu, machine.gpu.power
    ns = max(1, sum(price.durations))
    cap = float(gpu.power_watts)
    traffic = min(1.0, price.bytes / ns * 1e9 / gpu.hbm_bandwidth)
    profile = KernelProfile(
        interference=interference(gpu, price),
        interference_behind=interference(gpu, price, behind=True),
        steady_watts=cap * power.active,
        clock=1.0,
        clock_bound=1.0 - traffic,
        communication_slowdown=communication_slowdown(machine, price),
        waves=gpu.interference.waves,
        tiles=price.tiles,
        sms=min(price.sms or gpu.sms, gpu.sms),
        channels_sms=gpu.calibration.nccl_channels * gpu.interference.channel_sms,
    )
    if not price.format:
        return profile
    profile.clock_bound, profile.steady_watts = 1.0, 0.0
    if price.format in power.without_tensor_cores:
        profile.dynamic_watts = cap * power.active
        return profile
    profile.clock = burst_clock(machine, price)
    profile.dynamic_watts = watts(machine, price) / profile.clock
    return profile


def communication_slowdown(machine: Machine, price: Price) -> float:
    """The share of its pace that communication loses next to kernels of `price`.

    It shares memory, whose latency grows with the traffic, and the ways from L2 to the SMs, which products fill. What
    stays in L2 costs it nothing.
    """
    gpu = machine.gpu
    cost = gpu.communication_slowdown
    usual = {"gemm": cost.products, "convolution": cost.products, "attention": cost.attention}
    misses = machine.misses(price.bytes) / max(1, sum(price.durations)) * 1e9 / gpu.hbm_bandwidth
    longer = max(usual.get(price.cls, 0.0), cost.memory * min(1.0, misses) ** 3)
    return longer / (1.0 + longer)


def communication_feels(one_host: bool) -> float:
    """The share of the slowdown that communication feels. Between hosts NICs set the pace, and what kernels cost it
    there was not measured."""
    return float(one_host)


def interference(gpu: Gpu, price: Price, *, behind: bool = False) -> float:
    """Slowdown of kernels of `price` while a NCCL kernel runs; `behind`: one that was there first."""
    loss = gpu.interference
    usual = loss.classes.get(price.cls, 1.0)
    if not price.tiles or usual == 1.0:
        return usual
    taken = gpu.calibration.nccl_channels * (loss.first_channel_sms if behind else loss.channel_sms)
    usable = min(price.sms or gpu.sms, gpu.sms)
    left = max(1, min(usable, int(gpu.sms - taken)))
    return 1.0 + loss.waves * (ceil(price.tiles / left) / ceil(price.tiles / usable) - 1.0)

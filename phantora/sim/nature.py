"""What kernels do to a GPU: the power they draw, and what they and communication cost each other."""

from __future__ import annotations

import random
from math import ceil
from statistics import NormalDist

from phantora.cost.machine import Machine
from phantora.cost.types import Price
from phantora.hardware.types import Gpu
from phantora.sim.engine.library import Engine, KernelNature

CHANNEL_SMS = 1.25
"""SMs that a NCCL channel keeps from products that ran when it came: its own, and a neighbour every fourth time,
because products run in clusters of two SMs. 24 channels slow products of 128, 512, 1456 and 1664 tiles by the 2/1,
6/4, 15/11 and 17/13 waves that 102 SMs give (benchmarks/device/company.py on 4 H200)."""
FIRST_CHANNEL_SMS = 2.0
"""The same when the channel was there first: a free GPU places each on a pair of SMs of its own, which is lost to
clusters. A product of 384 tiles beside an all-reduce takes 5/3 of its waves in traces of Megatron on 4 H200."""
CHANNELS = 24  # of NCCL on NVLink of Hopper
WAVES = 0.92
"""Share of a product's time that comes in waves. Same measurement: 1.50, 1.97, 1.33, 1.27."""
WITHOUT_TENSOR_CORES = ("float32", "float64")
"""Formats of arithmetic that draw no more than other kernels do: a step of Llama 3 8B in float32 on 2 H200 runs at full
clock (benchmarks/device/results/runs_h200x2.jsonl)."""


def limit_power(engine: Engine, gpu: Gpu, world_size: int) -> None:
    """Tells the engine of the power limit, and how thirsty each rank's GPU is.

    GPUs of a model differ. A job is taken to have the quantiles of their distribution, dealt out to the ranks in an
    order that depends on nothing but their number; a single GPU is the median.
    """
    power, cap = gpu.power, float(gpu.power_watts)
    budget = (gpu.limit_watts or cap) - power.idle * cap
    engine.set_power(budget, power.exponent, power.communication * cap, power.response_ns, power.reaction_ns)
    order = list(range(world_size))
    random.Random(world_size).shuffle(order)
    for place, rank in enumerate(order):
        engine.set_appetite(rank, 1.0 + power.spread * NormalDist().inv_cdf((place + 0.5) / world_size))


def nature_of(machine: Machine, price: Price) -> KernelNature:
    """What the engine wants to know of the kernels of `price`."""
    gpu, power = machine.gpu, machine.gpu.power
    ns = max(1, sum(price.durations))
    cap = float(gpu.power_watts)
    traffic = min(1.0, price.bytes / ns * 1e9 / gpu.hbm_bandwidth)
    company, after = (beside_communication(gpu, price, sms) for sms in (CHANNEL_SMS, FIRST_CHANNEL_SMS))
    takes = pace_taken(machine, price)
    if not price.format:
        return KernelNature(company, after, 0.0, cap * power.active, 1.0, 1.0 - traffic, takes)
    if price.format in WITHOUT_TENSOR_CORES:
        return KernelNature(company, after, cap * power.active, 0.0, 1.0, 1.0, takes)
    # Drawn at the clock that the duration holds for: the full one, or the one at which a burst meets its own limit.
    tensor = power.attention if price.cls == "attention" else power.tensor
    rate = cap * tensor * price.flops / ns / machine.peak(price.format)
    burst = (power.burst - power.idle) * cap
    clock = min(1.0, (burst / rate) ** (1.0 / (power.exponent - 1.0))) if rate > 0 else 1.0
    return KernelNature(company, after, rate / clock, 0.0, clock, 1.0, takes)


def pace_taken(machine: Machine, price: Price) -> float:
    """The share of its pace that communication loses beside kernels of `price`.

    It shares memory, whose latency grows with the traffic, and the ways from L2 to the SMs, which products fill. What
    stays in L2 costs it nothing.
    """
    gpu = machine.gpu
    cost = gpu.hindrance
    usual = {"gemm": cost.products, "convolution": cost.products, "attention": cost.attention}
    misses = machine.misses(price.bytes) / max(1, sum(price.durations)) * 1e9 / gpu.hbm_bandwidth
    longer = max(usual.get(price.cls, 0.0), cost.memory * min(1.0, misses) ** 3)
    return longer / (1.0 + longer)


def feels_kernels(one_host: bool) -> KernelNature:
    """Of communication. Between hosts NICs set the pace, and what kernels cost it there was not measured."""
    return KernelNature(1.0, 1.0, 0.0, 0.0, 1.0, 0.0, float(one_host))


def beside_communication(gpu: Gpu, price: Price, channel_sms: float = CHANNEL_SMS) -> float:
    """How many times as long kernels of `price` take while a NCCL kernel runs whose channels take so many SMs each."""
    usual = gpu.company.get(price.cls, 1.0)
    if not price.tiles or usual == 1.0:
        return usual
    left = max(1, int(gpu.sms - CHANNELS * channel_sms))
    return 1.0 + WAVES * (ceil(price.tiles / left) / ceil(price.tiles / gpu.sms) - 1.0)

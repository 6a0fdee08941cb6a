"""Kernels as they were launched: what a bare one takes, and how an operator's time is spread over several."""

from __future__ import annotations

import re
from math import prod

from phantora.cost.machine import Machine
from phantora.cost.types import KernelLaunch

COVERED_WAVE_NS = 600.0
"""A wave of blocks of a kernel whose work is in another's price: an assumption, little more than its launch."""
UNKNOWN_WAVE_NS = 12_000.0
"""A wave of blocks of a kernel of which nothing is known but its grid: the median of measured Triton kernels without
products. One in ten takes 71 times as long (`python -m validation.compare.triton --by-grid`)."""
UNKNOWN_WAVE_ERROR = 70.0
# A kernel that spins for that many cycles of the SM clock (torch.cuda._sleep); stub/cuda/core/launch.c names it so.
_CYCLES = re.compile(r"\[(\d+) cycles\]$")


def spins(kernel: KernelLaunch) -> bool:
    """True for a kernel that only waits. Whatever operator launches it, it takes its cycles."""
    return _CYCLES.search(kernel.name) is not None


def covered_ns(machine: Machine, kernel: KernelLaunch) -> float:
    """A kernel whose work is in the price of another: one next to a product, or one that its operator launched late."""
    return _by_grid(machine, kernel, COVERED_WAVE_NS)


def unknown_ns(machine: Machine, kernel: KernelLaunch) -> float:
    """A kernel of which nothing is known but its grid; its error is UNKNOWN_WAVE_ERROR."""
    return _by_grid(machine, kernel, UNKNOWN_WAVE_NS)


def _by_grid(machine: Machine, kernel: KernelLaunch, wave_ns: float) -> float:
    """Waves of its blocks over the SMs' thread slots. One that spins: its cycles."""
    if cycles := _CYCLES.search(kernel.name):
        return machine.fit.floor_ns + int(cycles[1]) * 1e6 / machine.gpu.clock_khz
    return machine.fit.floor_ns + waves_of(machine, kernel) * wave_ns


def waves_of(machine: Machine, kernel: KernelLaunch) -> float:
    """Number of times that its blocks fill the SMs' thread slots."""
    gpu = machine.gpu
    threads = max(1, prod(kernel.block))
    per_sm = max(1, min(gpu.max_blocks_per_sm, gpu.max_threads_per_sm // min(threads, 1024)))
    return prod(kernel.grid) / (per_sm * gpu.sms)


def split(ns: float, kernels: tuple[KernelLaunch, ...], floor: float) -> tuple[int, ...]:
    """`ns` over `kernels` by their threads; library kernels take what the floors of others leave."""
    if len(kernels) <= 1:
        return (whole(ns),)
    libraries = [bool(k.library) for k in kernels]
    if any(libraries):
        rest = max(floor, ns - floor * libraries.count(False)) / libraries.count(True)
        return tuple(whole(rest if is_library else floor) for is_library in libraries)
    threads = [max(1, prod(k.grid) * prod(k.block)) for k in kernels]
    floor = min(floor, ns / len(kernels))
    spare = ns - floor * len(kernels)
    total = sum(threads)
    # Cumulative rounding: the parts add up to the whole.
    ends, done = [], 0.0
    for count in threads:
        done += floor + spare * count / total
        ends.append(whole(done))
    return tuple(max(1, end - start) for start, end in zip([0, *ends[:-1]], ends, strict=True))


def whole(ns: float) -> int:
    """Whole nanoseconds, at least one."""
    return max(1, round(ns))

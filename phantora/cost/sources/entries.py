"""A measured table entry as a price, for the tables and for live measurement."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from phantora.cost.families import gemm
from phantora.cost.machine import Machine
from phantora.cost.query import Query
from phantora.cost.table import Entry, TimedKernel
from phantora.cost.timing import kernel_ns, own_kernels
from phantora.cost.types import KernelLaunch, Price, scale_to
from phantora.hardware.types import Gpu

LEAST_ERROR = 0.01
"""Smallest relative error of a measured price: an assumption."""


def measured_price(gpu: Gpu, entry: Entry, query: Query) -> Price:
    """The times of `entry`, kernel by kernel where the query has as many kernels."""
    base = query.base
    own = own_kernels(entry)
    longer = prod(gemm.any_groups(Machine(gpu), product) for product in query.products)
    times = [longer * kernel_ns(kernel, base.cls, query.l2_hits) for kernel in own]
    total = sum(times) + hidden_memsets_ns(gpu, entry, query.kernels)
    spread = sum(_spread(kernel) * ns for kernel, ns in zip(own, times, strict=True))
    error = max(LEAST_ERROR, spread / max(1.0, sum(times)))
    if base.tiles:
        base = replace(base, tiles=_tiles(entry, query.kernels) or base.tiles)
    if len(times) == len(base.durations):
        factor = total / max(1.0, sum(times))
        durations = tuple(max(1, round(ns * factor)) for ns in times)
    else:
        gaps = max(0, len(times) - len(base.durations)) * gpu.calibration.library_gap_ns
        durations = scale_to(base.durations, total + gaps)
    return replace(base, durations=durations, provenance="measured", error=error)


def hidden_memsets_ns(gpu: Gpu, entry: Entry, kernels: tuple[KernelLaunch, ...]) -> float:
    """ns of memsets that a library call of `kernels` issues inside, which no stub shows, with a gap for each."""
    if not any(kernel.library for kernel in kernels):
        return 0.0
    hidden = [kernel for kernel in entry.kernels if kernel.kind == "memset"]
    return sum(kernel.cold + gpu.calibration.kernel_gap_ns for kernel in hidden)


def tile_counter_ns(gpu: Gpu, query: Query) -> float:
    """ns of the memsets in front of products that were not measured.

    cuBLAS clears a counter of tiles before a product on tensor cores of Hopper and later that takes more than one wave.
    In traces of training on H200, every such kernel and no other has one.
    """
    base = query.base
    calls = sum(bool(kernel.library) for kernel in query.kernels)
    waves = base.tiles > gpu.sms and base.format and gpu.compute_capability >= (9, 0)
    return calls * (gpu.calibration.floor_ns + gpu.calibration.kernel_gap_ns) if waves else 0.0


def _tiles(entry: Entry, kernels: tuple[KernelLaunch, ...]) -> int:
    """Tiles of the largest product, by the name of the measured kernel; 0 if the name does not give them."""
    called = [p for p in (gemm.from_library(kernel.library) for kernel in kernels) if p is not None]
    if not called:
        return 0
    largest = max(called, key=lambda p: p.flops)
    return max(gemm.tiles_of(kernel.name, largest) for kernel in own_kernels(entry))


def _spread(kernel: TimedKernel) -> float:
    """Relative: the spread of repetitions, or half of the effect of L2, whichever is larger."""
    return max(kernel.spread, abs(kernel.cold - kernel.warm) / max(1, kernel.cold + kernel.warm))

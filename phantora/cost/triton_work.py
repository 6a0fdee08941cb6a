"""Triton kernels, whoever made them, priced by what one launch does (:class:`phantora.ttir.work.Work`).

A launch takes as long as the slowest of five things, with a little of the others: moving its distinct bytes through
memory, moving all bytes that programs ask for through L2, multiplying tiles on the tensor cores, issuing instructions
for elements, and waiting: programs on an SM hide each other's latencies only as far as registers and shared memory let
them be there together. `CONSTANTS` were fitted to half of the kernels of benchmarks/device/triton_kernels.py on an H100
and judged on the others (benchmarks/triton_accuracy.py, docs/costs.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from phantora.cost.family import Estimate
from phantora.cost.machine import Machine
from phantora.ttir.work import Dot, Work

WARP = 32
REGISTER_UNIT, SHARED_RESERVED = (
    8,
    1024,
)  # registers are given in such units a thread; the driver keeps 1 KiB of each block's
TENSOR_ROWS = 64  # of a warp group's instruction on Hopper; smaller tiles take the older ones


@dataclass(frozen=True)
class Constants:
    """What was fitted. Times in ns at the calibrated GPU's clock, cycles of an SM for 1,000 elements."""

    error: float = 0.5
    """90th percentile of the relative error of kernels that were not fitted to."""
    memory: float = 0.97
    """Share of a stream's speed."""
    l2: float = 1.5
    """Share of the rate of hits."""
    tensor: float = 0.70
    """Share of the peak of large tiles by warp groups' instructions,"""
    tensor_old: float = 0.45
    """and by warps' instructions."""
    vector: float = 0.6
    """The same of formats that the tensor cores lack."""
    narrow: float = 96.0
    """Columns of a tile at which warp groups' instructions lose half."""
    alu: float = 8.0
    mufu: float = 64.0
    integer: float = 12.0
    convert: float = 12.0
    reduced: float = 16.0
    atomic: float = 60.0
    start_ns: float = 900.0
    """A program from its start to its end, without what follows."""
    load_ns: float = 700.0
    """A load that is waited for."""
    piped_ns: float = 350.0
    """A round of loads in a loop that multiplies, divided by the stages under way."""
    reduction_ns: float = 120.0
    step_ns: float = 20.0
    sharpness: float = 4.0
    """Of the maximum: the power of the mean that joins the five."""
    mixed: float = 1.6
    """The same for tensor cores and elements, which wait for each other within a program."""
    tail: float = 0.5
    """Share of the longest program that runs when the others have ended."""


CONSTANTS = Constants()


def class_of(name: str, work: Work) -> str:
    """The class (of ``types.CLASSES``) of a Triton kernel: by what it does, and by its name where that tells."""
    if work.dots:
        several = (
            len({(d.m, d.n, d.k) for d in work.dots}) > 1
            or sum(d.count for d in work.dots) > work.counts.get("steps", 1.0) * 1.5
        )
        return "attention" if "attention" in name or "attn" in name or (several and work.counts.get("mufu")) else "gemm"
    lowered = name.lower()
    if "norm" in lowered:
        return "normalization"
    if "entropy" in lowered or "loss" in lowered:
        return "loss"
    return "reduction" if work.counts.get("reductions") else "elementwise"


def resident(machine: Machine, work: Work) -> int:
    """Programs that an SM holds at a time."""
    gpu = machine.gpu
    threads = work.warps * WARP
    limits = [gpu.max_blocks_per_sm, gpu.max_threads_per_sm // threads]
    if work.registers:
        limits.append(gpu.regs_per_sm // (-(-work.registers // REGISTER_UNIT) * REGISTER_UNIT * threads))
    limits.append(gpu.smem_per_sm // (work.shared + SHARED_RESERVED))
    return max(1, min(limits))


def _joined(parts: list[float], power: float) -> float:
    top = max(parts)
    return top * sum((part / top) ** power for part in parts) ** (1.0 / power) if top > 0 else 0.0


def _rate(machine: Machine, work: Work, dot: Dot, c: Constants) -> float:
    """FLOP/ns that one SM reaches in products like `dot`."""
    peak = machine.peak(dot.dtype) / machine.gpu.sms
    if dot.dtype in ("float32", "float64"):
        return peak * c.vector
    hopper = machine.gpu.compute_capability >= (9, 0)
    if hopper and dot.m >= TENSOR_ROWS and work.warps % 4 == 0:
        return peak * c.tensor * dot.n / (dot.n + c.narrow) * (1.0 + c.narrow / 256.0)
    return peak * c.tensor_old * min(1.0, min(dot.m, dot.n) / 64.0) ** 0.5  # type: ignore[no-any-return]


def estimate(machine: Machine, work: Work, c: Constants = CONSTANTS) -> Estimate:
    """Of one launch: time, distinct bytes, flops; tiles of products are its programs."""
    n = work.counts
    moved = work.read + work.written
    flops = n.get("flops", 0.0) * work.programs
    if not work.programs:
        return Estimate(machine.launch_ns, 0.0, error=c.error)
    gpu = machine.gpu
    held = resident(machine, work)
    share = work.programs / gpu.sms  # programs an SM runs in all
    runs = max(ceil(share) if share < 16 else share, 1.0)
    rounds = max(share / held, 1.0)
    rounds = ceil(rounds) if rounds < 8 else rounds
    tail = 1.0 + c.tail * (work.longest - 1.0) * held / max(runs, held)
    memory = (machine.memory_ns(moved) - machine.fit.floor_ns) / c.memory
    asked = (n.get("load_sectors", 0.0) + n.get("store_sectors", 0.0)) * work.programs
    l2 = asked / (machine.cache_rate * c.l2)
    tensor = sum(d.count * 2.0 * d.m * d.n * d.k / _rate(machine, work, d, c) for d in work.dots)
    cycles = (
        n.get("alu", 0.0) * c.alu + n.get("mufu", 0.0) * c.mufu + n.get("integer", 0.0) * c.integer
        + n.get("convert", 0.0) * c.convert + n.get("reduced", 0.0) * c.reduced + n.get("atomics", 0.0) * c.atomic
    ) / 1e3  # fmt: skip
    issue = cycles / (gpu.reference_clock / 1e9)
    waits = (
        c.start_ns + n.get("phases", 0.0) * c.load_ns + n.get("piped", 0.0) * c.piped_ns / max(1, work.stages - 1)
        + n.get("reductions", 0.0) * c.reduction_ns + n.get("steps", 0.0) * c.step_ns
    ) * 1.98e9 / gpu.reference_clock  # fmt: skip
    busy = _joined([tensor * runs, issue * runs], c.mixed) * tail
    ns = machine.launch_ns + _joined([memory, l2, busy, waits * rounds * tail], c.sharpness)
    largest = max(work.dots, key=lambda d: d.count * d.m * d.n * d.k, default=None)
    return Estimate(ns, moved, flops, largest.dtype if largest else "", work.programs if largest else 0, error=c.error)

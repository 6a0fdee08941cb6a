"""Triton kernels, whoever made them, priced by what one launch does (:class:`phantora.ttir.work.Work`).

A launch takes as long as the slowest of six things, with a little of the others: moving its distinct bytes through
memory, moving all bytes that programs ask for through L2, moving tiles through shared memory, multiplying them on the
tensor cores, issuing instructions for elements, and waiting: programs on an SM hide each other's latencies only as far
as registers and shared memory let them be there together. `CONSTANTS` were fitted to half of the kernels of
validation/probes/triton_kernels.py on an H100 and an H200 and judged on the others (validation/compare/triton.py,
docs/triton.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from phantora.cost.family import UNKNOWN_ERROR, Estimate
from phantora.cost.machine import Machine
from phantora.cost.tensors import item_bytes, on_gpu, traffic
from phantora.cost.types import OperatorSignature
from phantora.hardware.gpus import load_gpu
from phantora.ttir.work import COUNTERS, WARP, Dot, Work
from phantora.wire.shared import SHARED_RESERVED

REGISTER_UNIT = 8  # registers are given in such units a thread
TENSOR_ROWS = 64  # of a warp group's instruction on Hopper; smaller tiles take the older ones
ROWS, COLUMNS = 16, 16  # of a tile that a warp's instructions multiply at least
SHARED_BYTES = 128  # that shared memory moves in a cycle
WIDE = ("float32", "float64", "tfloat32")
SPILLED = 100  # registers: of fewer that are spilled, loops use a part only
QUARTERS = 4  # of an SM, each with tensor cores of its own
LANES = 128  # of an SM: elements that instructions of single precision take a cycle (CUDA C++ Programming Guide)
FEW = 16  # programs per SM: up to here they end together, more even out
CALIBRATED = "H100-SXM"


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Fitted constants. Times in ns at the calibrated GPU's clock; cycles of an SM for 1,000 elements (threads'
    instructions, spilled registers of a warp)."""

    error: float = 0.43
    """90th percentile of the relative error of kernels that were not fitted to."""
    memory: float = 0.97
    """Share of a stream's speed."""
    l2: float = 1.66
    """Share of the rate of hits."""
    sm_rate: float = 114.0
    """Bytes/ns that one SM moves."""
    tensor: float = 0.8
    """Share of the peak of large tiles by warp groups' instructions,"""
    tensor_old: float = 0.62
    """and by warps' instructions, not fitted: an assumption, between a half and two thirds,"""
    tensor_wide: float = 0.1747
    """the same of tfloat32, whose operands must be rearranged first."""
    vector: float = 0.6
    """Share of the peak of formats that the tensor cores do not have."""
    shared: float = 0.8486
    """Share of the bytes that shared memory moves in a cycle."""
    product_alu: float = 9.709
    """`alu` of a program that multiplies, whose elements lie in registers as the tensor cores want them,"""
    product_scanned: float = 219.1
    """and `scanned`."""
    product_start_ns: float = 4928.0
    """`start_ns` of a program that multiplies: its first tiles come and its last one leaves before the next begins."""
    product_step_ns: float = 217.1
    """`step_ns` of its loops."""
    alu: float = 3.5
    mufu: float = 56.8
    integer: float = 5.36
    convert: float = 20.7
    reduced: float = 11.5
    scanned: float = 34.5
    cubed: float = 162.0
    access: float = 60.0
    scattered: float = 977.0
    atomic: float = 60.0
    spill: float = 9278.0
    """Accumulators and addresses, which every product needs,"""
    spill_several: float = 3100.0
    """and values between the products of a round, which it needs once (eight kernels of FlexAttention)."""
    warps: float = 4.0
    """Warps on an SM at which it issues half of what it could."""
    block_ns: float = 60.0
    """Between the starts of two programs on an SM."""
    start_ns: float = 697.0
    """Time from the end of a program to the first instruction of the next in its place."""
    serial: float = 0.143
    """Share of a program's own transfers and instructions that is not hidden behind its waits,"""
    serial_tensor: float = 0.1533
    """and of its products."""
    load_ns: float = 404.0
    """A load that is waited for."""
    piped_ns: float = 112.5
    """A round of loads in a loop that multiplies, divided by the stages under way."""
    reduction_ns: float = 54.9
    crossing_ns: float = 693.0
    dot_ns: float = 422.5
    """Latency of a product by warps' instructions, whose operands pass through registers,"""
    dot_group_ns: float = 269.4
    """and by those of groups of warps, which read shared memory themselves."""
    step_ns: float = 140.0
    """A round of a loop that fetches nothing ahead."""
    sharpness: float = 8.47
    """Sharpness of the maximum: the power of the mean that joins memory, L2, busy SMs and waiting programs."""
    mixed: float = 3.027
    """Sharpness of the maximum for tensor cores and elements, which wait for each other within a program."""
    tail: float = 0.452
    """Share of the longest program that runs when the others have ended."""


CONSTANTS = Constants()
BY_TENSORS = {False: (1.3, 2.2), True: (6.6, 2.7), None: (2.0, 6.0)}
"""Kernels with and without products of tiles, and of either: median time, relative to one pass of their tensors through
memory, and the factor to the 90th percentile (`python -m validation.compare.triton --by-tensors`: 98 and 58 kernels on
H100)."""


def by_tensors(machine: Machine, signature: OperatorSignature, products: bool | None) -> Estimate:
    """Estimate of a launch of which only the arguments are known, and perhaps that it multiplies tiles."""
    moved = float(sum(traffic(t) for t in on_gpu(signature.args)))
    times, error = BY_TENSORS[products]
    return Estimate(machine.memory_ns(moved) * times, moved, error=error)


def _several(work: Work) -> bool:
    """True if a round has several products, as that of an attention."""
    return sum(d.count for d in work.dots) > work.counts.get("steps", 1.0) * 1.5


def class_of(name: str, work: Work) -> str:
    """The class (of ``types.CLASSES``) of a Triton kernel: by its work, and by its name if that gives a class."""
    if work.dots:
        several = len({(d.m, d.n, d.k) for d in work.dots}) > 1 or _several(work)
        return "attention" if "attention" in name or "attn" in name or (several and work.counts.get("mufu")) else "gemm"
    lowered = name.lower()
    if "norm" in lowered:
        return "normalization"
    if "entropy" in lowered or "loss" in lowered:
        return "loss"
    return "reduction" if work.counts.get("reductions") or work.counts.get("crossings") else "elementwise"


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


def _by_groups(machine: Machine, work: Work, dot: Dot) -> bool:
    """True if groups of four warps multiply together, from shared memory (wgmma, tcgen05)."""
    hopper = machine.gpu.compute_capability >= (9, 0)
    return hopper and dot.m >= TENSOR_ROWS and work.warps % QUARTERS == 0 and dot.dtype not in WIDE


def _rate(machine: Machine, work: Work, dot: Dot, there: float, c: Constants) -> float:
    """FLOP/ns that one SM with `there` programs reaches in products like `dot`."""
    peak = machine.peak(dot.dtype) / machine.gpu.sms
    if dot.dtype in ("float32", "float64"):
        return peak * c.vector
    if dot.dtype == "tfloat32":
        return peak * c.tensor_wide
    if _by_groups(machine, work, dot):
        return peak * c.tensor
    return peak * c.tensor_old * min(1.0, work.warps * there / QUARTERS)


def _products_ns(machine: Machine, work: Work, there: float, c: Constants) -> float:
    """Time of one program's products on the tensor cores, next to `there` - 1 others."""
    return sum(d.count * 2.0 * d.m * d.n * d.k / _rate(machine, work, d, there, c) for d in work.dots)


def _split(dot: Dot, warps: int) -> tuple[int, int]:
    """Warps along rows and columns of a tile, in Triton's layout, if each warp multiplies a part."""
    along_m = along_n = 1
    while along_m * along_n < warps:
        rows, columns = dot.m // ROWS // along_m, dot.n // COLUMNS // along_n
        if rows >= columns and along_m < dot.m // ROWS:
            along_m *= 2
        else:
            along_n *= 2
    return along_m, along_n


def _shared_bytes(machine: Machine, work: Work, n: Mapping[str, float]) -> float:
    """Bytes of one program through shared memory for its products: tiles on their way in, operands on their way out.

    A warp reads the rows and columns of its own part of a tile. A group of warps reads all columns for 64 rows."""
    if not work.dots:
        return 0.0
    moved = n["load_bytes"]
    for d in work.dots:
        if _by_groups(machine, work, d):
            groups, rows = work.warps // QUARTERS, max(1, d.m // TENSOR_ROWS)
            elements = d.k * (d.m * max(1.0, groups / rows) + d.n * rows)
        else:
            along_m, along_n = _split(d, work.warps)
            elements = d.k * (d.m * along_n + d.n * along_m)
        moved += d.count * elements * item_bytes(d.dtype.replace("tfloat32", "float32"))
    return moved


def _cycles(work: Work, n: Mapping[str, float], c: Constants) -> float:
    """Cycles of an SM that issues the instructions of one program and nothing else."""
    alu, scanned = (c.product_alu, c.product_scanned) if work.dots else (c.alu, c.scanned)
    elements = (
        n["alu"] * alu
        + n["mufu"] * c.mufu
        + n["integer"] * c.integer
        + n["convert"] * c.convert
        + n["reduced"] * c.reduced
        + n["scanned"] * scanned
        + n["cubed"] * c.cubed
        + n["instructions"] * 1e3 / LANES
    )
    memory = n["accesses"] * c.access + n["scattered"] * c.scattered + n["atomics"] * c.atomic
    spill = c.spill_several if _several(work) else c.spill
    spilled = work.spills * min(1.0, work.spills / SPILLED) * work.warps * max(1.0, n["steps"]) * spill
    return (elements + memory + spilled) / 1e3


def _latencies_ns(machine: Machine, work: Work, n: Mapping[str, float], c: Constants) -> float:
    """Latencies of one program, one after the other."""
    products = sum(d.count * (c.dot_group_ns if _by_groups(machine, work, d) else c.dot_ns) for d in work.dots)
    fetched = n["phases"] * c.load_ns + n["piped"] * c.piped_ns / max(1, work.stages - 1)
    rounds = max(0.0, n["steps"] - n["piped"]) * (c.product_step_ns if work.dots else c.step_ns)
    return fetched + rounds + n["reductions"] * c.reduction_ns + n["crossings"] * c.crossing_ns + products


def _swept(machine: Machine, work: Work, there: float, touched: float, distinct: float) -> float:
    """Bytes of pairs of sectors that are fetched anew, of `touched` bytes a program, since programs come back to them
    after others. What is swept over in turns and is larger than L2 is never found there: the least recently used
    goes first."""
    held = min(work.programs, there * machine.gpu.sms) * distinct / work.programs
    return max(0.0, touched * work.programs - distinct) if held > machine.gpu.l2_bytes else 0.0


def estimate(machine: Machine, work: Work, c: Constants = CONSTANTS) -> Estimate:
    """Estimate of one launch: time, distinct bytes, flops; tiles of products are its programs."""
    n = {**dict.fromkeys(COUNTERS, 0.0), **work.counts}
    moved = work.read + work.written
    if not work.programs:
        return Estimate(machine.launch_ns, 0.0, error=c.error)
    gpu = machine.gpu
    clock = gpu.reference_clock / 1e9
    held = resident(machine, work)
    share = work.programs / gpu.sms  # programs that an SM runs in all
    runs = float(ceil(share)) if share < FEW else share
    there = min(runs, held)
    rounds = max(1.0, share / held)
    rounds = float(ceil(rounds)) if rounds < FEW / 2 else rounds
    tail = 1.0 + c.tail * (work.longest - 1.0) * there / runs

    under_way = there * gpu.sms * moved / work.programs
    lost = machine.misses(under_way) / under_way if under_way else 0.0  # of what a second pass finds in L2 no more
    again = n["again"] * work.programs * lost
    if n["load_sectors"] > 2.0 * n["load_bytes"]:
        again += _swept(machine, work, there, n["load_sectors"], work.read)
    again += 2.0 * _swept(machine, work, there, n["partial"], work.written)
    memory = (machine.memory_ns(moved + again) - machine.fit.floor_ns) / c.memory
    sectors = n["load_sectors"] + n["store_sectors"] + n["partial"]
    l2 = max(sectors * work.programs / (machine.cache_rate * c.l2), sectors * runs / c.sm_rate)
    issue = _cycles(work, n, c) / clock
    active = work.warps * there
    issued = issue * (active + c.warps) / active
    shared = _shared_bytes(machine, work, n) / (SHARED_BYTES * clock * c.shared)
    products = max(_products_ns(machine, work, there, c), shared)
    busy = _joined([products * runs, issued * runs], c.mixed) * tail + c.block_ns * runs
    own = sectors / c.sm_rate + issue * (work.warps + c.warps) / work.warps
    waits = c.serial * own + c.serial_tensor * _products_ns(machine, work, 1.0, c)
    waits += _latencies_ns(machine, work, n, c) * (load_gpu(CALIBRATED).reference_clock / 1e9) / clock
    start = c.product_start_ns if work.dots else c.start_ns
    waiting = waits * rounds * tail + start * (rounds - 1.0)

    ns = machine.launch_ns + _joined([memory, l2, busy, waiting], c.sharpness)
    largest = max(work.dots, key=lambda d: d.count * d.m * d.n * d.k, default=None)
    flops = n["flops"] * work.programs
    error = max(c.error, UNKNOWN_ERROR) if work.unknown else c.error
    if largest is None:
        return Estimate(ns, moved, flops=flops, error=error)
    return Estimate(ns, moved, flops=flops, format=largest.dtype, tiles=work.programs, error=error)

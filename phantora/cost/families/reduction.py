"""Reductions: from the way torch cuts them (ATen/native/cuda/Reduce.cuh), which grid and block show, to a time.

A thread adds up its elements in rounds of four (or four groups of neighbours, one for each of its results), and waits
for memory in each round. Results that are shared by several blocks are added up by the last one that ends.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2, prod

from phantora.cost import coordinates
from phantora.cost.coordinates import Place
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import ints_at, item_bytes, nbytes, on_gpu
from phantora.cost.types import KernelLaunch, OperatorSignature, TensorSpec

NAMES = frozenset(
    (
        "sum",
        "mean",
        "amax",
        "amin",
        "max",
        "min",
        "argmax",
        "argmin",
        "any",
        "all",
        "prod",
        "norm",
        "linalg_vector_norm",
        "var",
        "std",
        "var_mean",
        "std_mean",
        "logsumexp",
        "nansum",
        "count_nonzero",
        "cumsum",
        "cumprod",
        "logcumsumexp",
        "aminmax",
        "_logcumsumexp",
        "cummax",
        "cummin",
        "histc",
        "bincount",
        "linalg_norm",
        "mode",
        "trace",
    )
)
SHARE = 0.92  # of a vectorised stream's speed
FLOOR_NS = 3500.0  # a second stage across blocks, on top of the launch floor
CYCLES = 1.3  # SM cycles per result of a reduction with many results, or per element of short rows
MANY_RESULTS, SHORT_ROW, ONE_BLOCK_BYTES = 65536, 128, 65536

# Of kernels whose cut is known, fitted to 1,833 of them on H200 (the shipped table).
UNROLLED = 4  # loads of a thread that are under way at once
START_NS = 500.0  # of a wave of blocks: their indices
HALVING_NS = 127.0  # adding up two halves of a block
ROUND_NS, ROUND_NS_PER_BYTE = 230.0, 12.8  # a round's wait, by the bytes of a load
ELEMENT_CYCLES, INDEX_CYCLES = 0.05, 0.25  # of an SM; when the place of the extremum is wanted
SHARED_NS = 3050.0  # blocks that share a result
OVERLAP = 1.46  # rounds, arithmetic and memory hide behind each other by this norm of their times
WIDE_REGISTERS = 86  # of a thread with several results
WITH_INDEX = ("max.dim", "min.dim", "argmax", "argmin")

SCANS = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "_cum", "_logcumsumexp")
SCAN_NS = 370.0  # a row of a scan that is not along the last dimension (H100, validation/probes/operators_wide.py)

_KERNEL = re.compile(r"reduce_kernel(?:<|ILi)\d+(?:, ?|ELi)(\d+)")


@dataclass(frozen=True)
class Cut:
    """Distribution of a reduction over threads."""

    rounds: float
    """Rounds of a thread, one after the other."""
    blocks: int
    sharing: int
    """Blocks that add up the same results."""
    wide: int
    """Neighbouring results of a thread."""


def cut_of(signature: OperatorSignature, kernels: Sequence[KernelLaunch]) -> Cut | None:
    """The cut of an operator that is one of torch's reductions, None for others."""
    found = _KERNEL.search(kernels[0].name) if len(kernels) == 1 else None
    given = on_gpu(signature.args)
    if found is None or not given:
        return None
    grid, block, wide = kernels[0].grid, kernels[0].block, int(found[1])
    each = prod(given[0].shape) / max(1, prod(grid) * prod(block))
    return Cut(max(1.0, each / (UNROLLED * wide)), prod(grid), grid[1], wide)


def classify(name: str) -> str | None:
    """Class by name, in place or not."""
    stem = name.rstrip("_")
    return "reduction" if stem in NAMES or stem.startswith("_cum") else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Everything is read once."""
    given = on_gpu(signature.args)[:1]
    moved = float(sum(nbytes(t) for t in given))
    if name.startswith(SCANS) and given and (steps := _scanned(signature, given[0])):
        return Estimate(machine.fit.floor_ns + max(steps * SCAN_NS, machine.memory_ns(2 * moved)), 2 * moved)
    cut = cut_of(signature, kernels)
    if cut is not None:
        return Estimate(_cut_ns(machine, signature, given[0], cut, prod(kernels[0].block)), moved)
    results, row = _results(signature, given[0]) if given else (1, 0)
    if results >= MANY_RESULTS:
        work = results * (row if 0 < row < SHORT_ROW else 1)
        issue = machine.fit.floor_ns + machine.cycles_ns(work * CYCLES)
        return Estimate(max(issue, machine.memory_ns(moved, SHARE)), moved)
    octaves = log2(max(moved, 1.0) / ONE_BLOCK_BYTES)  # where blocks begin to share results is not known
    start = FLOOR_NS * min(1.0, max(0.25, 0.625 + 0.1875 * octaves))
    return Estimate(start + machine.memory_ns(moved, SHARE), moved)


def _cut_ns(machine: Machine, signature: OperatorSignature, x: TensorSpec, cut: Cut, threads: int) -> float:
    gpu = machine.gpu
    held = min(gpu.max_threads_per_sm, gpu.regs_per_sm // WIDE_REGISTERS) if cut.wide > 1 else gpu.max_threads_per_sm
    resident = max(1, min(gpu.max_blocks_per_sm, held // max(1, threads)))
    waves = max(1.0, cut.blocks / (gpu.sms * resident))
    load = item_bytes(x.dtype) * cut.wide
    ends = START_NS + HALVING_NS * (threads.bit_length() - 1)
    waits = waves * cut.rounds * (ROUND_NS + ROUND_NS_PER_BYTE * load) + (waves - 1.0) * ends
    cycles = INDEX_CYCLES if signature.name.endswith(WITH_INDEX) else ELEMENT_CYCLES
    arithmetic = machine.cycles_ns(prod(x.shape) * cycles) * max(1.0, gpu.sms / cut.blocks)
    memory = machine.memory_ns(float(nbytes(x))) - machine.fit.floor_ns
    work = float((waits**OVERLAP + arithmetic**OVERLAP + memory**OVERLAP) ** (1 / OVERLAP))
    return machine.launch_ns + ends + work + (SHARED_NS if cut.sharing > 1 else 0.0)


def _scanned(signature: OperatorSignature, x: TensorSpec) -> int:
    """Rows that a thread of a scan goes over one after the other; 0 where the scan is along the last dimension."""
    dim = next((a for a in signature.args if isinstance(a, int) and not isinstance(a, bool)), -1)
    dim += len(x.shape) if dim < 0 else 0
    return x.shape[dim] if 0 <= dim < len(x.shape) - 1 else 0


def _results(signature: OperatorSignature, x: TensorSpec) -> tuple[int, int]:
    """Elements that a reduction leaves, and how many neighbours each adds up (0: none are neighbours)."""
    dims = _reduced(signature, x)
    if len(dims) == len(x.shape):
        return 1, 0
    count = prod(x.shape[d] for d in dims)
    return prod(x.shape) // max(1, count), count if len(x.shape) - 1 in dims else 0


def side_by_side(signature: OperatorSignature, x: TensorSpec) -> bool:
    """Do the elements of a result lie side by side in `x`? Then a thread loads several at once."""
    step = 1
    for stride, extent in sorted((x.stride[d], x.shape[d]) for d in _reduced(signature, x) if x.shape[d] != 1):
        if stride != step:
            return False
        step *= extent
    return True


def _reduced(signature: OperatorSignature, x: TensorSpec) -> set[int]:
    """The dimensions that are reduced."""
    rank = len(x.shape)
    given = ints_at(signature.args, 2 if "norm" in signature.name else 1) if rank else ()
    return {d % rank for d in given if -rank <= d < rank} or set(range(rank))


def places(signature: OperatorSignature, name: str, compute: str, launches: int) -> tuple[Place, ...]:
    """Rows along the dimensions that are reduced."""
    return coordinates.by_rows(signature, name, launches, coordinates.reduced(signature), images="norm" in name)


def places_of_cut(signature: OperatorSignature, cut: Cut, block: tuple[int, int, int]) -> tuple[Place, ...]:
    """Rounds, blocks, blocks that share results, bytes: of an operator whose cut is known."""
    x, log = on_gpu(signature.args)[0], coordinates.log
    at = (log(cut.rounds), log(cut.blocks), log(cut.sharing), 0.5 * log(nbytes(x)))
    kind = f"{signature.name} {x.dtype} cut {cut.wide} {side_by_side(signature, x)}"
    return Place(f"{kind} {block}", at), Place(kind, at)


FAMILY = Family("reduction", classify=classify, estimate=estimate, precedence=65, places=places)

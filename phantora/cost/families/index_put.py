"""index_put: values written, or added, to where indices say.

With `accumulate` the indices are sorted by radix passes of a byte, and each warp of a second kernel adds up one run of
equal ones, value after value, once for each element before the indexed dimensions (ATen/native/cuda/Indexing.cu).
"""

from __future__ import annotations

from math import ceil, exp, log2, prod, sqrt
from typing import NamedTuple

from phantora.cost import coordinates
from phantora.cost.coordinates import Place
from phantora.cost.families.elementwise import passes_memory
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import broadcast, item_bytes, on_gpu
from phantora.cost.types import OperatorSignature, TensorSpec

NAMES = ("_index_put_impl_", "index_put_", "index_put", "_unsafe_index_put")
# All constants: 56 of them on an H100 and 43 on an H200 (the shipped tables, validation/workloads).
SINGLE_TILE, SINGLE_TILE_NS = 2304, 4500.0  # keys of int64 that one block sorts
SORT_NS, SORT_KEY_NS = 3600.0, 0.005  # histogram, and sums over it
PASS_NS, PASS_KEY_NS, PASS_BITS = 7000.0, 0.0125, 8
INDICES_PER_BLOCK, COLUMNS_PER_BLOCK, RESIDENT = 4, 128, 16  # blocks of 128 threads on an SM
BLOCK_NS, NARROW_BLOCK_NS, NARROW = 2500.0, 1600.0, 32  # of a block: index, values and sum one after the other
SINGLE_BLOCK_NS = 1900.0  # rows of one element
EQUAL_NS, NARROW_EQUAL_NS = 400.0, 220.0  # of each further index in the longest run of equal ones
START_NS = 1000.0
WRITE_CYCLES, WRITE_NS = 1.2, 3000.0  # without accumulate: an element's place, and the wait for its index


class Work(NamedTuple):
    """`indices` of `words` places in each of `before` parts, each a row of `row` elements."""

    before: int
    indices: int
    words: int
    row: int


def classify(name: str) -> str | None:
    """Class by name."""
    return "copy" if name in NAMES else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Masks pick an unknown number: they count as all that they may pick."""
    x = signature.args[0] if signature.args else None
    positions = signature.args[1] if len(signature.args) > 1 else None
    if not isinstance(x, TensorSpec) or not isinstance(positions, tuple):
        return passes_memory(machine, signature, name, kernels)
    work = work_of(x, positions)
    item = item_bytes(x.dtype)
    elements = work.before * work.indices * work.row
    touched = work.before * work.words * (1.0 - exp(-work.indices / max(1, work.words))) * work.row
    values = [t for t in on_gpu(signature.args[2:3]) if t.shape]
    given = elements * item if values else 0
    if signature.args[3:4] != (True,):
        moved = float(given + elements * item + 8 * work.indices)
        ns = max(machine.memory_ns(moved), machine.fit.floor_ns + machine.cycles_ns(elements * WRITE_CYCLES))
        return Estimate(ns + WRITE_NS, moved)
    moved = float(given + 2 * touched * item)
    ns = sort_ns(work.indices, work.words) + _added(machine, work, moved)
    return Estimate(ns, moved)


def work_of(x: TensorSpec, positions: tuple[object, ...]) -> Work:
    """Work of ``x[positions]``, where None stands for a whole dimension."""
    axis, before, words = 0, 1, 1
    shapes: list[tuple[int, ...]] = []
    for position in positions:
        if not isinstance(position, TensorSpec):
            before *= prod(x.shape[axis : axis + 1])
            axis += 1
            continue
        mask = position.dtype in ("bool", "uint8")
        dims = len(position.shape) if mask else 1
        words *= prod(x.shape[axis : axis + dims])
        shapes.append((prod(position.shape),) if mask else position.shape)
        axis += dims
    return Work(before, prod(broadcast(shapes)) if shapes else 1, words, prod(x.shape[axis:]))


def sort_ns(indices: int, words: int) -> float:
    """Time to sort `indices` with as many bits as `words` has."""
    if indices <= SINGLE_TILE:
        return SINGLE_TILE_NS
    passes = ceil(max(1.0, log2(max(2, words))) / PASS_BITS)
    return SORT_NS + indices * SORT_KEY_NS + passes * (PASS_NS + indices * PASS_KEY_NS)


def _added(machine: Machine, work: Work, moved: float) -> float:
    """Sums of the values that belong together."""
    narrow = work.row <= NARROW
    columns = 1 if narrow else ceil(work.row / COLUMNS_PER_BLOCK)
    blocks = ceil(work.indices / INDICES_PER_BLOCK) * columns * work.before
    block_ns = SINGLE_BLOCK_NS if work.row == 1 else NARROW_BLOCK_NS if narrow else BLOCK_NS
    each = work.indices / max(1, work.words)
    longest = min(float(work.indices), each + 3.0 * sqrt(each))  # of runs of random indices
    chain = longest * (NARROW_EQUAL_NS if narrow else EQUAL_NS)
    waves = blocks / (machine.gpu.sms * RESIDENT)
    return START_NS + chain + max(machine.fit.floor_ns + waves * block_ns, machine.memory_ns(moved))


def places(signature: OperatorSignature, name: str, compute: str, launches: int) -> tuple[Place, ...]:
    """Rows that are written, and how many there are to choose from."""
    x = signature.args[0] if signature.args else None
    positions = signature.args[1] if len(signature.args) > 1 else None
    if not isinstance(x, TensorSpec) or not isinstance(positions, tuple):
        return coordinates.by_size(signature, name, compute, launches)
    work, log = work_of(x, positions), coordinates.log
    adds = signature.args[3:4] == (True,)
    at = (log(work.indices), 0.5 * log(work.words), log(work.row), log(work.before))
    kind = f"{name.rstrip('_')} {adds} {work.row == 1} {work.before == 1}"
    return Place(f"{kind} {x.dtype}", at), Place(kind, at)


FAMILY = Family("index_put", classify=classify, estimate=estimate, precedence=84, places=places)

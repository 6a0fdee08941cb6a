"""index, gather, scatter and their kin: rows or elements that an index picks."""

from __future__ import annotations

from math import ceil, prod, sqrt

from phantora.cost import coordinates
from phantora.cost.coordinates import Place
from phantora.cost.families.elementwise import passes_memory
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import broadcast, ints_at, item_bytes, nbytes, on_gpu
from phantora.cost.types import OperatorSignature, TensorSpec
from phantora.ttir.work import LINE_BYTES, SECTOR_BYTES

BEGINNINGS = (
    "index",
    "gather",
    "scatter",
    "take",
    "put",
    "masked_select",
    "masked_scatter",
    "nonzero",
    "_index_put_impl",
    "_unsafe_index",
    "unique",
    "_unique",
    "repeat_interleave",
    "searchsorted",
    "bucketize",
)
# Each one kernel; the copy that a form without underscore makes before is an operator of its own.
ADDED = ("index_add_", "index_add")
# scatter adds or assigns in one kernel of ATen.
WRITTEN = ("scatter_add_", "scatter_add", "scatter_", "scatter")
ADDING = ("index_add", "index_reduce")
ASSIGNED = ("index_copy_", "index_copy", "index_fill_", "index_fill")
PICKING = ("gather", "scatter")
SCATTERED = 0.25  # of a stream's speed: rows picked or written one by one, measured on H200
# gather and scatter, fitted to 359 of them on H100 and H200 (the shipped tables,
# validation/workloads).
# SM cycles of an element: its index, an addition next to those of its neighbours, one on its own.
PICK_CYCLES, ADD_CYCLES, ADD_ALONE_CYCLES = 0.82, 0.95, 3.4
RANDOM = 0.35  # of a stream's speed: sectors out of memory in any order
# A block of the kernel that copies rows, and its piece.
ROW_NS, ROW_BLOCK_BYTES, ROW_BYTES_PER_THREAD = 2500.0, 4096, 16
# Until the index has come; of fewer elements, by the square root of their share (11 measured ones of 4 to 512: 1.3 to
# 4 us in all).
INDEX_NS, INDEX_ELEMENTS = 2500.0, 512
# An element of index, from a table of 16 on an H200 (4-bit weights by a codebook: 168 of 4 and 11 million).
INDEXED_CYCLES, L1_BYTES = 1.28, 128 << 10
# index_copy and index_fill, fitted to 26 of them on an H200: an element, and the wait for the index (and the value).
ASSIGN_CYCLES, ASSIGN_NS, ASSIGN_COPY_NS = 0.77, 1000.0, 3000.0
# index_add and index_reduce, from 110 of them on an H200: SM cycles of an element and of an index, the wait for it.
ROW_ADD_CYCLES, ROW_ADD_INDEX_CYCLES, ROW_ADD_NS = 1.85, 1.7, 900.0


def classify(name: str) -> str | None:
    """Names begin so."""
    if not name.rstrip("_").startswith(BEGINNINGS):
        return None
    return "embedding" if name.startswith("index_select") else "copy"


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Indices, and as many elements as they address."""
    given = on_gpu(signature.args)
    if not given:
        return passes_memory(machine, signature, name, kernels)
    source = given[0]
    indices = [t for t in given[1:] if t.dtype in ("int64", "int32", "bool", "uint8")]
    if name.startswith(PICKING) and indices and len(indices[0].shape) == len(source.shape) > 0:
        return _picked_one_by_one(machine, signature, name, source, indices[0], kernels)
    if name in ASSIGNED and indices:
        return _assigned(machine, signature, source, indices[0])
    if name.startswith(ADDING) and indices:
        return _added_to_rows(machine, signature, source, indices[0])
    values = [t for t in given[1:] if t not in indices]
    if values:
        touched = sum(nbytes(t) for t in values) * 2
    elif name.startswith(("index_select", "index")) and indices:
        picked = signature.args[1] if len(signature.args) > 1 else None
        if isinstance(picked, tuple) and any(t in indices for t in picked):
            elements = _picked(source, picked)
        else:
            count = prod(broadcast(t.shape for t in indices))
            elements = count * _row(signature, source, len(indices) if not name.startswith("index_select") else 0)
        touched = 2 * elements * item_bytes(source.dtype)
    elif indices:
        touched = 2 * prod(indices[0].shape) * item_bytes(source.dtype)
    else:
        touched = 2 * nbytes(source)
    moved = float(min(touched, 64 * nbytes(source) + touched) + sum(map(_stored, indices)))
    if any("vectorized_gather_kernel" in kernel.name for kernel in kernels) and len(indices) == 1:
        count = prod(indices[0].shape)
        return _rows_copied(machine, source, indices[0], count, touched / 2.0 / max(1, count))
    wide = name.startswith("index_select") or (bool(indices) and touched > 64 * sum(prod(t.shape) for t in indices))
    if name == "index" and indices and not values:
        return _indexed(machine, source, touched / 2.0, float(sum(map(_stored, indices))), wide)
    return Estimate(machine.memory_ns(moved, 0.8 if wide else SCATTERED), moved)


def _indexed(machine: Machine, source: TensorSpec, written: float, index: float, wide: bool) -> Estimate:
    """An element a thread (`index_elementwise_kernel`), from anywhere in `source` unless L1 holds that."""
    elements = written / item_bytes(source.dtype)
    scattered = 0.0 if nbytes(source) <= L1_BYTES else written / (0.8 if wide else SCATTERED)
    work = machine.fit.floor_ns + machine.cycles_ns(elements * INDEXED_CYCLES)
    memory = machine.memory_ns(written + index + scattered)
    return Estimate(max(work, memory) + _waited(elements), 2.0 * written + index)


def _waited(elements: float) -> float:
    """ns until the index has come."""
    return INDEX_NS * sqrt(min(1.0, elements / INDEX_ELEMENTS))


def _stored(index: TensorSpec) -> int:
    """Bytes of an index in memory: dimensions that it was expanded to hold nothing."""
    if len(index.stride) != len(index.shape):  # a layout without strides
        return nbytes(index)
    return prod(n for n, s in zip(index.shape, index.stride, strict=True) if s) * item_bytes(index.dtype)


def _picked_one_by_one(
    machine: Machine, signature: OperatorSignature, name: str, source: TensorSpec, index: TensorSpec, kernels: Kernels
) -> Estimate:
    """gather and scatter, whose index has a place for each element, or was expanded to rows
    (ATen/native/cuda/ScatterGatherKernel.cu). A place of its own costs a sector of L2, and one of memory at first."""
    rank, item = len(source.shape), item_bytes(source.dtype)
    axis = next((a for a in signature.args[1:2] if type(a) is int), 0) % rank
    elements, whole = prod(index.shape), prod(source.shape)
    if name.startswith("gather") and _of_rows(source, index, axis, kernels):
        return _rows_copied(machine, source, index, index.shape[0], float(prod(index.shape[1:]) * item))
    values = sum(nbytes(t) for t in on_gpu(signature.args[3:4])) if name.startswith("scatter") else elements * item
    streamed = float(values + _stored(index))
    last, relation = _lanes(source, index)
    turned = _turned(signature, last)
    spread = source.shape[axis] * source.stride[axis] * item if source.stride else LINE_BYTES
    writes = 2 if name.startswith("scatter") else 1
    if relation:
        opened, share, sectors = float(min(elements, whole) * item), 1.0, 0.0
    else:
        opened = float(min(elements * SECTOR_BYTES, whole * item))
        share = RANDOM if spread > LINE_BYTES else 1.0
        sectors = 0.0 if axis == last == rank - 1 and source.stride[-1:] == (1,) else float(elements * SECTOR_BYTES)
    memory = machine.memory_ns(streamed + writes * opened / share)
    cycles = PICK_CYCLES
    if name.startswith("scatter_add"):
        cycles = ADD_CYCLES if relation else ADD_ALONE_CYCLES
    start = machine.fit.floor_ns
    if turned:
        start += elements * SECTOR_BYTES / machine.cache_rate
    work = max(start + machine.cycles_ns(elements * cycles), start + (sectors + streamed) / machine.cache_rate, memory)
    return Estimate(work + _waited(elements), streamed + writes * opened)


def _assigned(machine: Machine, signature: OperatorSignature, source: TensorSpec, index: TensorSpec) -> Estimate:
    """index_copy and index_fill write the rows of the index, an element a thread (`index_elementwise_kernel`)."""
    elements = _assigned_elements(signature, source, index)
    values = [t for t in on_gpu(signature.args[3:4]) if t.shape]
    moved = float(elements * item_bytes(source.dtype) * (2 if values else 1) + _stored(index))
    work = max(machine.memory_ns(moved), machine.fit.floor_ns + machine.cycles_ns(elements * ASSIGN_CYCLES))
    return Estimate(work + (ASSIGN_COPY_NS if values else ASSIGN_NS), moved)


def _added_to_rows(machine: Machine, signature: OperatorSignature, source: TensorSpec, index: TensorSpec) -> Estimate:
    """index_add and index_reduce: an atomic addition for each element."""
    elements = _assigned_elements(signature, source, index)
    touched = min(elements, prod(source.shape))
    moved = float((elements + 2 * touched) * item_bytes(source.dtype) + _stored(index))
    cycles = elements * ROW_ADD_CYCLES + prod(index.shape) * ROW_ADD_INDEX_CYCLES
    work = max(machine.memory_ns(moved), machine.fit.floor_ns + machine.cycles_ns(cycles))
    return Estimate(work + ROW_ADD_NS, moved)


def _assigned_elements(signature: OperatorSignature, source: TensorSpec, index: TensorSpec) -> int:
    return prod(index.shape) * _row(signature, source, 0)


def _lanes(source: TensorSpec, index: TensorSpec) -> tuple[int, bool]:
    """The dimension that a warp's lanes go along, and whether their elements lie side by side."""
    last = max((d for d, n in enumerate(index.shape) if n != 1), default=len(index.shape) - 1)
    return last, index.stride[last : last + 1] == (0,) and source.stride[last : last + 1] == (1,)


def _turned(signature: OperatorSignature, last: int) -> bool:
    """Do the values that are scattered lie along another dimension than `last`, a sector for each lane?"""
    values = signature.args[3] if len(signature.args) > 3 else None
    return isinstance(values, TensorSpec) and values.stride[last : last + 1] not in ((), (0,), (1,))


def _of_rows(source: TensorSpec, index: TensorSpec, axis: int, kernels: Kernels) -> bool:
    """Do whole rows follow one index each, in pieces of 16 bytes? By the kernel's name, where it is known."""
    if kernels:
        return any("vectorized_gather_kernel" in kernel.name for kernel in kernels)
    even = source.stride[-1:] == (1,) and source.shape[-1] * item_bytes(source.dtype) % ROW_BYTES_PER_THREAD == 0
    return axis == 0 and len(source.shape) == 2 and index.stride[-1:] == (0,) and even and index.shape[-1] > 1


def _rows_copied(machine: Machine, source: TensorSpec, index: TensorSpec, rows: int, row: float) -> Estimate:
    """A block for each piece of `rows` rows of `row` bytes; rows that L2 holds are read from memory once."""
    written, held = rows * row, float(nbytes(source))
    missed = max(0.0, 1.0 - machine.reach / max(1.0, held))
    read = min(written, held) + max(0.0, written - held) * missed
    threads = 32 * ceil(min(row, ROW_BLOCK_BYTES) / ROW_BYTES_PER_THREAD / 32)
    resident = min(machine.gpu.max_blocks_per_sm, machine.gpu.max_threads_per_sm // threads) * machine.gpu.sms
    blocks = rows * ceil(row / ROW_BLOCK_BYTES)
    moved = read + written + _stored(index)
    ns = max(machine.memory_ns(moved), machine.fit.floor_ns + blocks * ROW_NS / resident)
    return Estimate(ns, moved)


def _picked(source: TensorSpec, positions: tuple[object, ...]) -> int:
    """Elements of ``source[positions]``. A mask stands for as many dimensions as it has, and may pick all of them."""
    axis, kept = 0, 1
    shapes: list[tuple[int, ...]] = []
    for position in positions:
        if not isinstance(position, TensorSpec):  # None: a whole dimension
            kept *= prod(source.shape[axis : axis + 1])
            axis += 1
        elif position.dtype in ("bool", "uint8"):
            shapes.append((prod(position.shape),))
            axis += len(position.shape)
        else:
            shapes.append(position.shape)
            axis += 1
    return kept * prod(broadcast(shapes)) * prod(source.shape[axis:])


def _row(signature: OperatorSignature, source: TensorSpec, leading: int) -> int:
    """Elements that an index picks: behind `leading` dimensions, or, if 0, all but those of the operator's own."""
    if leading:
        return prod(source.shape[leading:])
    dims = ints_at(signature.args, 1)
    axis = dims[0] if dims else 0
    extent = source.shape[axis] if -len(source.shape) <= axis < len(source.shape) else 1
    return prod(source.shape) // max(1, extent)


def places(signature: OperatorSignature, name: str, compute: str, launches: int) -> tuple[Place, ...]:
    """Rows; of those that are looked up also how many there are to choose from."""
    if not name.startswith(("gather", "index", "scatter")):
        return coordinates.by_size(signature, name, compute, launches)
    for same in (ADDED, WRITTEN):
        name = same[0] if name in same else name
    given = on_gpu(signature.args)
    if name in ASSIGNED and len(given) > 1:
        source, index, log = given[0], given[1], coordinates.log
        at = (log(_assigned_elements(signature, source, index)), log(prod(index.shape)))
        kind = name.rstrip("_")
        return Place(f"{kind} {item_bytes(source.dtype)}", at), Place(kind, at)
    if name.startswith("index"):
        more = (coordinates.words(signature),) if name.startswith("index_select") else ()
        return coordinates.by_rows(signature, name, launches, images="norm" in name, more=more)
    if len(given) < 2 or len(given[0].shape) != len(given[1].shape):
        return coordinates.by_rows(signature, name, launches)
    last, relation = _lanes(given[0], given[1])
    form = f"{relation} {_turned(signature, last)}"
    return coordinates.by_rows(signature, name, launches, form, True, more=(0.5 * coordinates.log(nbytes(given[0])),))


FAMILY = Family(
    "gather", classify=classify, estimate=estimate, precedence=85, places=places, together=ADDED + WRITTEN + ASSIGNED
)

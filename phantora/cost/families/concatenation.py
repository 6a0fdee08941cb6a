"""cat, stack, and copies into or out of several tensors at once."""

from __future__ import annotations

from math import prod

from phantora.cost import coordinates
from phantora.cost.coordinates import Place
from phantora.cost.families.elementwise import index_cycles
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import contiguous_strides, dense, ints_at, item_bytes, nbytes, on_gpu, tensors
from phantora.cost.types import OperatorSignature, TensorSpec

NAMES = frozenset(
    ("cat", "_cat", "stack", "_chunk_cat", "split_with_sizes_copy", "split_copy", "unbind_copy", "hstack", "vstack")
)
# Cycles of an SM per element of cat's kernel for inputs that it cannot vectorise, and for rows below SHORT_ROW: read
# from traces on H200 (docs/accuracy.md).
CYCLES, SHORT_CYCLES = 0.80, 1.17
CONTIGUOUS_CYCLES = 0.33  # of its kernel for contiguous inputs of any width (168 cats of bytes on an H200)
SHORT_ROW = 1024
BATCHED_DIMS = 4  # cat's kernel takes tensors of as many dimensions; others are copied one by one
# cat's grid has a row of blocks for each input, as long as the longest input asks for. Measured ones of 2 to 33 inputs
# on an H100 (validation/probes/image_operators.py) take 0.53 ns for each block after the first row: 70 ns of one SM.
ROW_BLOCK_NS = 70.0
COPY_NS = 500.0  # of a copy that runs out of memory, with its operands' addresses (60 measured ones of several dtypes)


def classify(name: str) -> str | None:
    """Class by name, in place or not."""
    return "copy" if name.rstrip("_") in NAMES else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """cat, stack, split copies, chunk_cat."""
    given = on_gpu(signature.args[:1])
    size = sum(nbytes(t) for t in given)
    elements = sum(prod(t.shape) for t in given)
    out = next((t for t in on_gpu(signature.args[1:])), None)
    written = max(size, nbytes(out)) if out is not None else size
    moved = float(size + written)
    if "chunk_cat" in name or "split_with_sizes_copy" in name:
        casts = out is not None and given and item_bytes(out.dtype) != item_bytes(given[0].dtype)
        if casts or "chunk_cat" in name:
            return Estimate(max(machine.index_ns(elements, moved), machine.memory_ns(moved)), moved)
        return Estimate(machine.memory_ns(moved, 0.85), moved)
    if (len({t.dtype for t in given}) > 1 and not name.startswith("_chunk")) or _one_by_one(name, given):
        return _copied(machine, signature, name, given, out)
    slow = any("CatArrayBatchedCopy" in k.name and not any(s in k.name for s in _CAT_FAST) for k in kernels)
    if not kernels:
        slow = any(not dense(t) for t in given)
    if slow:
        short = any(_row_elements(signature, t) < SHORT_ROW for t in given)
        cycles = machine.cycles_ns(elements * (SHORT_CYCLES if short else CYCLES))
        return Estimate(max(machine.fit.floor_ns + cycles, machine.memory_ns(moved)), moved)
    rows = sum(prod(k.grid) - k.grid[0] for k in kernels if "CatArrayBatchedCopy" in k.name)
    work = 0.0
    if any("CatArrayBatchedCopy_contig" in k.name for k in kernels):
        work = machine.fit.floor_ns + machine.cycles_ns(elements * CONTIGUOUS_CYCLES)
    return Estimate(max(work, machine.memory_ns(moved, 0.92)) + rows * ROW_BLOCK_NS / machine.gpu.sms, moved)


def _one_by_one(name: str, given: list[TensorSpec]) -> bool:
    """True if cat copies its inputs one by one because they have too many dimensions for its kernel."""
    return name.rstrip("_") == "cat" and any(len(t.shape) > BATCHED_DIMS for t in given)


def _copied(
    machine: Machine, signature: OperatorSignature, name: str, given: list[TensorSpec], out: TensorSpec | None
) -> Estimate:
    """Inputs of different dtypes or many dimensions: a copy of each, which casts or indexes
    (ATen/native/cuda/Shape.cu). One that needs neither and lies in one piece is a copy of memory, priced on its own."""
    result = max((t.dtype for t in given), key=item_bytes) if out is None else out.dtype
    dims = ints_at(signature.args, 1)
    ns, moved = 0.0, 0.0
    for t in given:
        if t.dtype == result and dense(t) and prod(t.shape[: dims[0] if dims else 0]) == 1:
            continue
        count = prod(t.shape)
        each = float(nbytes(t) + count * item_bytes(result))
        part = TensorSpec(result, t.shape, stride=contiguous_strides(t.shape))
        work = machine.fit.floor_ns + machine.cycles_ns(count * index_cycles([t], part, name))
        ns += COPY_NS + max(work, machine.memory_ns(each))
        moved += each
    return Estimate(max(ns, machine.fit.floor_ns), moved)


def _row_elements(signature: OperatorSignature, t: TensorSpec) -> int:
    """Elements of `t` that lie side by side in the result of cat."""
    dims = ints_at(signature.args, 1)
    axis = dims[0] if dims else 0
    return prod(t.shape[axis if axis >= 0 else max(0, len(t.shape) + axis) :])


_CAT_FAST = ("vectorized", "aligned", "contig")


def places(signature: OperatorSignature, name: str, compute: str, launches: int) -> tuple[Place, ...]:
    """Bytes, tensors, and how much of the largest lies side by side."""
    lists, given = coordinates.tensor_lists(signature), on_gpu(signature.args)
    if not lists or not given or name.rstrip("_") not in ("cat", "stack", "_chunk_cat", "split_with_sizes_copy"):
        return coordinates.by_size(signature, name, compute, launches)
    first = list(tensors(lists[0]))
    dtypes = " ".join(dict.fromkeys(t.dtype for t in given))
    if " " in dtypes and name.rstrip("_") == "cat":
        dtypes = "several"
    if _one_by_one(name, given):
        dtypes += " one by one"
    even = all(dense(t) for t in given)
    total = sum(nbytes(t) for a in lists for t in tensors(a))
    widest = max(first, key=nbytes)
    at = (coordinates.log(total), 0.5 * coordinates.log(len(first)), 0.3 * coordinates.inner(widest))
    return Place(f"{name} {dtypes} {even}", at), Place(f"{name} {dtypes}", at)


FAMILY = Family("concatenation", classify=classify, estimate=estimate, places=places)

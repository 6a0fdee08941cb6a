"""Rows of tables looked up, one by one or summed in bags, and the tables' gradients."""

from __future__ import annotations

from math import ceil, exp, prod

from phantora.cost import coordinates
from phantora.cost.coordinates import Place
from phantora.cost.families import gather, sort
from phantora.cost.families.elementwise import passes_memory
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import INDEX_BYTES, ints_at, item_bytes, nbytes, on_gpu, tensor_at
from phantora.cost.types import OperatorSignature, TensorSpec
from phantora.ttir.work import WARP

LOOKUP_SHARE = 0.8  # of a stream's speed
BLOCK = 1024  # threads
UNSORTED_ROWS = 3072  # indices of a gradient that need no sorting
UNSORTED_ROW_NS, UNSORTED_ELEMENT_NS = 32.0, 0.0045  # one by one: each, and per element of its row
SORT_NS, SORT_INDEX_NS = 66_000.0, 0.12  # two dozen small kernels, eight of which pass over all indices
PART_ROWS, PART_NS, SEGMENT_NS = 10, 1850.0, 2150.0  # rows of a part; a block's time in the two kernels that sum

# Of bags, fitted to 148 operators of the H200's table: the longest chain of additions, the rows, the bags.
BAG_WARPS = 8192  # that sum at a time
BAG_NS, BAG_STEP_NS, BAG_EACH_NS, BAG_SUM_BYTE_NS = 2320.0, 160.0, 0.2, 0.0017
BAG_BYTE_NS = {True: 0.00016, False: 0.00031}  # of rows, by whether L2 holds the table
# Of their gradients: a single block sorts few indices; the kernels between sorting and summing; summing.
ONE_TILE, ONE_TILE_NS, SORT_SHARE = 2048, 15_500.0, 0.92
BETWEEN_NS, BETWEEN_INDEX_NS = 11_000.0, 0.0092
OF_LARGEST, BAG_LARGEST_NS = 2, 1250.0  # the mode of bags of which the largest row counts; a warp's row
BAG_GRADIENT_NS, BAG_PART_NS, BAG_INDEX_NS = 3900.0, 3700.0, 130.0


def classify(name: str) -> str | None:
    """Names begin so."""
    return "embedding" if name.startswith(("embedding", "_embedding_bag")) else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """A lookup, a sum of bags, or the gradient of either."""
    first, indices = tensor_at(signature.args, 0), tensor_at(signature.args, 1)
    if first is None or indices is None or not first.shape:
        return passes_memory(machine, signature, name, kernels)
    if "backward" in name:
        return (_bags_backward if "bag" in name else _backward)(machine, signature, first, indices)
    if "bag" in name:
        return _bags(machine, signature, first, indices)
    moved = float(2 * prod(indices.shape) * prod(first.shape[1:]) * item_bytes(first.dtype) + nbytes(indices))
    return Estimate(machine.memory_ns(moved, LOOKUP_SHARE), moved)


def _backward(machine: Machine, signature: OperatorSignature, grad: TensorSpec, indices: TensorSpec) -> Estimate:
    """Few indices are gone through one by one; more are sorted, and cut into segments of equal ones and these into
    parts, each of which has threads for a whole row (ATen/native/cuda/EmbeddingBackwardKernel.cu)."""
    rows, width = prod(indices.shape), grad.shape[-1]
    moved = float(2 * nbytes(grad))
    if rows <= UNSORTED_ROWS:
        return Estimate(machine.fit.floor_ns + rows * (UNSORTED_ROW_NS + width * UNSORTED_ELEMENT_NS), moved)
    segments = _segments(rows, max(ints_at(signature.args, 2) or (rows,)))
    threads = ceil(width / WARP) * WARP  # of a row
    block, gpu = min(threads, BLOCK), machine.gpu
    held = gpu.sms * min(gpu.max_blocks_per_sm, gpu.max_threads_per_sm // block) * block
    parts = segments + rows // PART_ROWS
    sorting = SORT_NS + rows * SORT_INDEX_NS
    return Estimate(sorting + (parts * PART_NS + segments * SEGMENT_NS) * threads / held, moved)


def _segments(rows: int, words: int) -> float:
    """Segments of equal indices among `rows` random ones below `words`: blocks are launched for the largest possible
    number."""
    different = words * (1.0 - exp(-rows / max(1, words)))
    return (different + min(rows, words)) / 2


def _bags(machine: Machine, signature: OperatorSignature, table: TensorSpec, indices: TensorSpec) -> Estimate:
    """A warp adds up 32 columns of a bag."""
    offsets = tensor_at(signature.args, 2)
    bags = prod(offsets.shape) if offsets is not None else 1
    width, rows = table.shape[-1], prod(indices.shape)
    chain = rows / max(1, bags) * ceil(bags * ceil(width / WARP) / BAG_WARPS)
    read, written = rows * width * item_bytes(table.dtype), bags * width * item_bytes(table.dtype)
    row = BAG_BYTE_NS[nbytes(table) <= machine.gpu.l2_bytes]
    ns = BAG_NS + chain * BAG_STEP_NS + bags * BAG_EACH_NS + read * row + written * BAG_SUM_BYTE_NS
    return Estimate(ns / machine.clock_ratio, float(read + written))


def _bags_backward(machine: Machine, signature: OperatorSignature, grad: TensorSpec, indices: TensorSpec) -> Estimate:
    """As an embedding's, always sorted, with a block for each part. Of the largest of a bag, each sum is added once."""
    width, rows = max(1, grad.shape[-1]), prod(indices.shape)
    if signature.args[7:8] == (OF_LARGEST,):
        moved = float(3 * nbytes(grad))
        waves = max(1.0, prod(grad.shape[:-1]) * ceil(width / WARP) / BAG_WARPS)
        issue = machine.cycles_ns(prod(grad.shape) * gather.ADD_ALONE_CYCLES)
        work = machine.fit.floor_ns + max(waves * BAG_LARGEST_NS / machine.clock_ratio, issue)
        return Estimate(max(work, machine.memory_ns(moved)), moved)
    slots = machine.gpu.sms * min(32, machine.gpu.max_threads_per_sm // (ceil(width / WARP) * WARP) or 1)
    parts = _segments(rows, max(ints_at(signature.args, 5) or (rows,))) + rows // PART_ROWS
    sorting = ONE_TILE_NS if rows <= ONE_TILE else SORT_SHARE * sort.passes_ns(rows, INDEX_BYTES)
    between = BETWEEN_NS + rows * BETWEEN_INDEX_NS
    summing = BAG_GRADIENT_NS + (parts * BAG_PART_NS + rows * BAG_INDEX_NS) / slots
    moved = float(2 * rows * width * item_bytes(grad.dtype))
    return Estimate((sorting + between + summing) / machine.clock_ratio, moved)


def places(signature: OperatorSignature, name: str, compute: str, launches: int) -> tuple[Place, ...]:
    """Rows and how many there are to choose from; of bags, their number, that of their indices, what is in a row."""
    at: tuple[float, ...] = ()
    if "bag" in name:
        given = on_gpu(signature.args)
        spans = [prod(t.shape) for t in given if t.dtype in ("int64", "int32")]
        width = next((t.shape[-1] for t in given if t.shape and t.dtype not in ("int64", "int32")), 1)
        at = (*sorted((coordinates.log(n) for n in spans), reverse=True)[:3], coordinates.log(width))
    more = (coordinates.words(signature),)
    return coordinates.by_rows(signature, name, launches, images="norm" in name, at=at, more=more)


FAMILY = Family("embedding", classify=classify, estimate=estimate, precedence=35, places=places)

"""Embedding bags of fbgemm: the lookups of many tables in one call, and their gradients with the optimizer fused in."""

from __future__ import annotations

from math import prod

from phantora.cost.families import embedding, sort
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import INDEX_BYTES, INDICES, item_bytes, nbytes, on_gpu
from phantora.cost.types import OperatorSignature, TensorSpec

SHARE = 0.6  # of a stream's speed: rows of 64 to 512 bytes, picked one by one
ERROR = 0.50


def classify(name: str) -> str | None:
    """Class by namespace and parts of the generated names."""
    generated = name.startswith("fbgemm::") and "embedding" in name and ("codegen" in name or "lookup" in name)
    return "embedding" if generated else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Rows that indices pick, not the tables; backward they are sorted, read and written."""
    given = on_gpu(signature.args)
    tables = max((t for t in given if t.dtype not in INDICES and t.shape), key=nbytes, default=None)
    numbers = [t for t in given if t.dtype in INDICES and len(t.shape) == 1 and prod(t.shape) > 1]
    if tables is None or not numbers:
        moved = float(sum(map(nbytes, on_gpu(signature.outputs))) * 2)
        return Estimate(machine.memory_ns(moved), moved, error=1.0)
    indices = max(numbers, key=lambda t: prod(t.shape))
    count = min(prod(t.shape) for t in numbers)  # of tables: each has a place, and an offset
    columns, bags = _result(signature, given, numbers, count)
    rows = prod(indices.shape) * columns / count * item_bytes(tables.dtype)
    moved = rows + bags * columns * item_bytes(tables.dtype) + nbytes(indices)
    if "backward" not in name:
        return Estimate(machine.memory_ns(moved, SHARE), moved, error=ERROR)
    moved += 2 * rows
    sorting = embedding.SORT_SHARE * sort.passes_ns(prod(indices.shape), INDEX_BYTES) / machine.clock_ratio
    return Estimate(machine.memory_ns(moved, SHARE) + sorting, moved, error=ERROR)


def _result(
    signature: OperatorSignature, given: list[TensorSpec], numbers: list[TensorSpec], count: int
) -> tuple[int, int]:
    """Columns of all tables together, and bags of each: from what is returned or, backward, its gradient; else from the
    number of columns among the arguments, and the offsets of all bags of all tables."""
    whole = [t for t in (*on_gpu(signature.outputs), *given) if t.dtype not in INDICES]
    made = [t for t in whole if len(t.shape) == 2 and nbytes(t)]
    if made:
        return made[0].shape[1], made[0].shape[0]
    columns = next((v for v in signature.args if type(v) is int and v > 1), count)
    offsets = sorted(prod(t.shape) for t in numbers)[-2:][0]
    return columns, max(1, (offsets - 1) // count)


FAMILY = Family("table-batched embeddings", classify=classify, estimate=estimate)

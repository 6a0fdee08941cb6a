"""Operators of extensions that no family knows: bounded by what they can touch.

They write what they return (as much as their largest operand where that is not known), and read their operands.
Operands that dwarf the rest and come with indices are taken for tables of which rows are picked; the error bar reaches
the time that all of them would take. Operands and result that fit together like those of a matrix product are taken for
one.
"""

from __future__ import annotations

from itertools import permutations
from math import prod

from phantora.cost.families import gemm
from phantora.cost.families.elementwise import without_operands
from phantora.cost.family import LAST, Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import INDICES, item_bytes, nbytes, on_gpu, traffic
from phantora.cost.types import OperatorSignature, TensorSpec

TABLE = 4  # times the rest: such an operand may be a table
LEAST_ERROR = 2.8
"""The 90th percentile of measured kernels without products takes 3.8 times as long as its tensors need to pass memory
(`python -m validation.compare.triton --by-tensors`)."""
PRODUCT_ERROR = 1.0


def classify(name: str) -> str | None:
    """All of extensions: it is asked last."""
    return "other" if "::" in name else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Between the least and the most that the operator can do."""
    bare = without_operands(machine, signature, kernels)
    if bare is not None and not signature.outputs:
        return bare
    given, made = on_gpu(signature.args), on_gpu(signature.outputs)
    rest = max(0, len(kernels) - 1) * machine.fit.floor_ns
    product = product_of(given, made)
    if product is not None:
        ns, tiles = gemm.plan(machine, product)
        return Estimate(
            ns + rest, product.moved, flops=product.flops, format=product.dtype, tiles=tiles, error=PRODUCT_ERROR
        )
    tables = tables_among(given)
    read, picked_from = (float(sum(map(traffic, some))) for some in (given, tables))
    if made:
        written = float(sum(map(nbytes, made)))
    elif tables:  # rows are written into them
        written = float(sum(nbytes(t) for t in given if t not in tables and t.dtype not in INDICES))
    else:
        written = float(max(map(nbytes, given), default=0))
    moved = min(read + written, read - picked_from + (2.0 if made else 1.0) * written) if tables else read + written
    ns, most = (machine.memory_ns(each) + rest for each in (moved, read + written))
    return Estimate(ns, moved, error=max(LEAST_ERROR, most / ns - 1.0))


def tables_among(given: list[TensorSpec]) -> list[TensorSpec]:
    """Operands that are larger than all others together, several times, where there are indices to pick rows by."""
    if not any(t.dtype in INDICES and t.shape for t in given):
        return []
    ordered = sorted(given, key=nbytes, reverse=True)
    for count in (1, 2):  # keys and values have a table each
        rest = sum(map(nbytes, ordered[count:]))
        if len(ordered) > count and nbytes(ordered[count - 1]) > TABLE * rest:
            return ordered[:count]
    return []


def product_of(given: list[TensorSpec], made: list[TensorSpec]) -> gemm.Product | None:
    """A product m x k by k x n (or n x k) whose result m x n is what is returned; None if nothing fits."""
    if len(made) != 1 or len(made[0].shape) < 2:
        return None
    *rows, n = result = made[0].shape
    matrices = [t for t in given if len(t.shape) >= 2 and t.dtype not in INDICES]
    for a, b in permutations(matrices, 2):
        m, k = prod(rows), a.shape[-1]
        elementwise = a.shape == b.shape == result  # squares
        fits = a.shape[:-1] == tuple(rows) and b.shape in ((k, n), (n, k)) and min(m, n, k) > 1
        if fits and not elementwise:
            return gemm.Product(
                m, n, k, batch=1, dtype=a.dtype, in_bytes=item_bytes(a.dtype), out_bytes=item_bytes(made[0].dtype)
            )
    return None


FAMILY = Family("unknown", classify=classify, estimate=estimate, precedence=LAST)

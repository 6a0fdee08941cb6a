"""Kernels of the CuTe DSL: never less than their tensors take to pass memory, and a product's time where three fit.

What they do is not in their arguments: the largest tensors are read or written once. FlashAttention-4 has its own
operators (:mod:`phantora.cost.families.flash_attn`).
"""

from __future__ import annotations

from dataclasses import replace

from phantora.cost.families import gemm, unknown
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import INDICES, item_bytes, on_gpu, traffic
from phantora.cost.types import OperatorSignature, TensorSpec

ERROR = 0.5
"""Relative: an assumption. quack's kernels reach 80 to 90 % of the memory's peak for large tensors (its README)."""
PRODUCT_ERROR = 0.3


def classify(name: str) -> str | None:
    """By namespace."""
    return "other" if name.startswith("cute::") else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """A pass of all tensors; a product of two of them into a third takes at least its time."""
    given = on_gpu(signature.args)
    moved = float(sum(map(traffic, given)))
    whole = Estimate(machine.memory_ns(moved) + max(0, len(kernels) - 1) * machine.fit.floor_ns, moved, error=ERROR)
    product = product_among(given)
    if product is None:
        return whole
    ns, tiles = gemm.plan(machine, product)
    found = replace(whole, flops=product.flops, format=product.dtype, tiles=tiles, cls="gemm", error=PRODUCT_ERROR)
    return replace(found, ns=max(whole.ns, ns))


def product_among(given: list[TensorSpec]) -> gemm.Product | None:
    """A product of two operands into a third: matrices, or batches of them with the batch first or last."""
    matrices = [t for t in given if len(t.shape) >= 2 and t.dtype not in INDICES]
    for result in reversed(matrices):  # outputs come last
        rest = [t for t in matrices if t is not result]
        if found := unknown.product_of(rest, [result]) or _batched(rest, result):
            return found
    return None


def _batched(given: list[TensorSpec], made: TensorSpec) -> gemm.Product | None:
    """Product of (batch, m, k) and (batch, n, k) or (batch, k, n); or of (m, k, batch) and (n, k, batch), CuTe's."""
    if len(made.shape) != 3:
        return None
    pairs = [(a, b) for a in given for b in given if a is not b and len(a.shape) == len(b.shape) == 3]
    for a, b in pairs:
        for first in (True, False):
            (batch, m, n), (ab, am, k), (bb, *sides) = (_turned(t.shape, first) for t in (made, a, b))
            if ab == bb == batch and am == m and sides in ([n, k], [k, n]) and min(m, n, k) > 1:
                return gemm.Product(
                    m, n, k, batch=batch, dtype=a.dtype, in_bytes=item_bytes(a.dtype), out_bytes=item_bytes(made.dtype)
                )
    return None


def _turned(shape: tuple[int, ...], first: bool) -> tuple[int, ...]:
    return shape if first else (shape[-1], *shape[:-1])


FAMILY = Family("cute", classify=classify, estimate=estimate)

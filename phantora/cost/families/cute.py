"""Kernels of the CuTe DSL: never less than their tensors take to pass memory, and a product's time where three fit.

What they do is not in their arguments: the largest tensors are read or written once. FlashAttention-4 has its own
operators (:mod:`phantora.cost.families.flash_attn`), cuDNN's backward products of gated experts a rate of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from phantora.cost.families import gemm, unknown
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import INDICES, item_bytes, on_gpu, traffic
from phantora.cost.types import OperatorSignature, TensorSpec

ERROR = 0.5
"""Relative: an assumption. quack's kernels reach 80 to 90 % of the memory's peak for large tensors (its README)."""
PRODUCT_ERROR = 0.3
GATED_GRADIENT = "grouped_gemm_dglu"
"""In the names of cuDNN's products of experts' gradients, with the gate's gradient and its casts in the epilogue."""
GRADIENTS_PER_NS = 2.3
"""Elements of the gate's gradient that the epilogue of a Blackwell SM makes in a ns.

The published time of 268 M elements (M 32,768, K 8,192, N 4,096) gives 2.1 on a GB200 and 2.4 on a GB300, where the
product alone takes nearly as long (github.com/NVIDIA/cudnn-frontend, benchmark/cutedsl_fusion_kernels, 1.23.0). The six
products of a layer of 64 experts (262,144 rows, 2,560 x 1,280) take 6.9 ms on a GB200 with it and 5.4 ms without;
7.4 ms are published (github.com/marin-community/marin, issue 7282)."""
GROUPED = "grouped_gemm"
"""In the names of cuDNN's products of all experts in one kernel."""
GROUPED_SHARE = 0.77
"""Part of a product's rate: 0.71 on a GB200, 0.83 on a GB300, by the published times of 8 experts with 4,096 rows,
K 8,192 and N 4,096 (`srelu`, the same benchmark)."""
BIAS = 1.12
"""Time with gradients of biases over that without: 155.6 and 139.0 us on a B200 (cudnn-frontend, pull request 322)."""


def classify(name: str) -> str | None:
    """By namespace."""
    return "other" if name.startswith("cute::") else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """A pass of all tensors; a product of two of them into a third takes at least its time."""
    given = on_gpu(signature.args)
    sms = _sms(machine, kernels)
    if GATED_GRADIENT in name and (gated := gated_gradient(given)):
        gated = replace(gated, product=replace(gated.product, sms=sms))
        return _of_gradient(machine, gated, float(sum(map(traffic, given))))
    if GROUPED in name and (every := product_of_experts(given)):
        return _of_experts(machine, replace(every, sms=sms), float(sum(map(traffic, given))))
    moved = float(sum(map(traffic, given)))
    whole = Estimate(machine.memory_ns(moved) + max(0, len(kernels) - 1) * machine.fit.floor_ns, moved, error=ERROR)
    product = product_among(given)
    if product is None:
        return whole
    ns, tiles = gemm.plan(machine, product)
    found = replace(whole, flops=product.flops, format=product.dtype, tiles=tiles, cls="gemm", error=PRODUCT_ERROR)
    return replace(found, ns=max(whole.ns, ns))


def _sms(machine: Machine, kernels: Kernels) -> int:
    """SMs of a grouped product, whose blocks stay on one each, if they are fewer than the GPU has; else 0.

    CUDNNFE_CLUSTER_OVERLAP_MARGIN leaves clusters to communication (cudnn-frontend 1.32).
    """
    blocks = prod(kernels[0].grid) if kernels else 0
    return blocks if blocks < machine.gpu.sms else 0


@dataclass(frozen=True)
class GatedGradient:
    """`product` of all experts, the `elements` that its epilogue makes, and whether it sums the gradients of biases."""

    product: gemm.Product
    elements: int
    biased: bool


def gated_gradient(given: list[TensorSpec]) -> GatedGradient | None:
    """Reads rows (m, k), weights of experts (k, n, experts) in any order, the gate's inputs (m, 2 n) in 16 bits and
    perhaps gradients of biases, 2 n for each expert. None if these are not among `given`."""
    shapes = [tuple(size for size in t.shape if size > 1) for t in given]
    wide = [shape for t, shape in zip(given, shapes, strict=True) if item_bytes(t.dtype) == 2 and len(shape) == 2]
    narrow = [shape for t, shape in zip(given, shapes, strict=True) if item_bytes(t.dtype) < 2]
    if not wide or not narrow:
        return None
    m, both = max(wide, key=prod)
    n, k = both // 2, next((shape[1] for shape in narrow if len(shape) == 2 and shape[0] == m), 0)
    experts = next((prod(shape) // (n * k) for shape in narrow if len(shape) == 3 and k and {n, k} <= {*shape}), 1)
    if not k or both % 2:
        return None
    product = _narrow(max(1, m // experts), n, k, experts)
    return GatedGradient(product, m * both, any(prod(shape) == experts * both for shape in wide))


def _of_gradient(machine: Machine, gated: GatedGradient, moved: float) -> Estimate:
    """The longest of its bytes, its product, and the work of its epilogue, which runs next to the product."""
    ns, tiles = gemm.plan(machine, gated.product)
    sms = gated.product.sms
    epilogue = machine.fit.floor_ns + gated.elements / (GRADIENTS_PER_NS * (sms or machine.gpu.sms))
    ns = max(machine.memory_ns(moved), ns / GROUPED_SHARE, epilogue) * (BIAS if gated.biased else 1.0)
    p = gated.product
    return Estimate(ns, moved, error=PRODUCT_ERROR, flops=p.flops, format=p.dtype, tiles=tiles, sms=sms, cls="gemm")


def product_of_experts(given: list[TensorSpec]) -> gemm.Product | None:
    """Reads rows (m, k) and weights of experts, k and n in any order; or gradients of outputs (m, n) and inputs (m, k)
    that make gradients of weights. None if these are not among `given`."""
    shapes = [tuple(size for size in t.shape if size > 1) for t in given]
    narrow = [shape for t, shape in zip(given, shapes, strict=True) if item_bytes(t.dtype) < 2]
    rows, weights = ([shape for shape in narrow if len(shape) == size] for size in (2, 3))
    if rows and weights and rows[0][1] in weights[0]:
        (m, k), every = rows[0], prod(weights[0])
        experts = next((size for size in weights[0] if size != k and m % size == 0 and every // (k * size) > size), 0)
        if experts:
            return _narrow(m // experts, every // (k * experts), k, experts)
    made = [shape for shape in shapes if len(shape) == 3]
    if len(rows) > 1 and made and rows[0][0] == rows[1][0]:
        (m, n), (_, k) = rows[:2]
        experts = prod(made[0]) // (n * k)
        return _narrow(n, k, m // experts, experts) if experts else None
    return None


def _narrow(m: int, n: int, k: int, experts: int) -> gemm.Product:
    return gemm.Product(m, n, k, batch=experts, dtype="float8_e4m3fn", in_bytes=1, out_bytes=2)


def _of_experts(machine: Machine, p: gemm.Product, moved: float) -> Estimate:
    """The longer of its bytes and its product."""
    ns, tiles = gemm.plan(machine, p)
    ns = max(machine.memory_ns(moved), ns / GROUPED_SHARE)
    return Estimate(ns, moved, error=PRODUCT_ERROR, flops=p.flops, format=p.dtype, tiles=tiles, sms=p.sms, cls="gemm")


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

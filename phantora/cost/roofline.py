"""The analytic cost model: every operator and kernel gets a duration, never a silent zero."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from phantora.cost import attention, convolution, copies, gemm, recurrent
from phantora.cost.catalogue import base_name, classify
from phantora.cost.machine import Machine
from phantora.cost.tensors import nbytes, on_gpu, tensor_at, tensors
from phantora.cost.types import KernelLaunch, OperatorSignature, Price
from phantora.hardware.types import Gpu

PROVENANCE = "roofline"
# 90th percentile of the relative error by class, from benchmarks/kernel_accuracy.py.
ERRORS = {
    "gemm": 0.14,
    "attention": 0.12,
    "convolution": 0.35,
    "normalization": 0.20,
    "elementwise": 0.26,
    "copy": 0.55,
    "reduction": 0.18,
    "optimizer": 0.27,
    "embedding": 0.29,
    "fill": 0.36,
    "random": 0.18,
}
DEFAULT_ERROR = 0.50
# A kernel of which nothing is known but its grid: each thread does about this much.
THREAD_NS_PER_WAVE = 600.0


class Roofline:
    """Implements :class:`phantora.cost.types.CostModel` for `gpu`.

    `sustained` prices products as they run when nothing else does (a benchmark's loop).
    """

    def __init__(self, gpu: Gpu, sustained: bool = False) -> None:
        self.gpu = gpu
        self.machine = Machine(gpu)
        self.sustained = sustained

    def operator(self, signature: OperatorSignature, kernels: tuple[KernelLaunch, ...]) -> Price:
        name = base_name(signature.name)
        cls, model = classify(name)
        if (layers := recurrent.from_signature(signature, name)) is not None:
            ns, count = recurrent.recurrent_ns(self.machine, layers), recurrent.flops(layers)
            price = self._price(ns, kernels, cls, count, float(sum(map(nbytes, tensors(signature.args)))))
            return replace(price, error=DEFAULT_ERROR)
        library = [gemm.from_library(k.library) for k in kernels]
        products = [p for p in library if p is not None]
        if products and cls != "convolution":
            return self._products(products, library, kernels, signature, name)
        if cls == "gemm":
            expected = gemm.from_signature(signature, name)
            if expected:
                ns = sum(gemm.product_ns(self.machine, p, self.sustained) for p in expected)
                moved = sum(p.moved for p in expected)
                price = self._price(ns, kernels, cls, sum(p.flops for p in expected), moved)
                return self._tiled(price, expected)
        if cls == "attention":
            found = attention.from_signature(signature, name)
            if found is not None:
                return replace(self._attention(found, kernels), format=found.dtype)
        if cls == "convolution":
            estimate = convolution.estimate(self.machine, signature, name)
            if estimate is not None:
                price = self._price(estimate[0], kernels, cls, estimate[1], estimate[2])
                image = tensor_at(signature.args, 0)
                return replace(price, format=convolution.arithmetic(image) if image else "")
        if cls == "elementwise" and kernels and not on_gpu(signature.args):
            # A frame that says nothing about its work (an extension's, an autograd function's).
            parts = tuple(_whole(self._bare_ns(k)) for k in kernels)
            return Price(parts, "other", PROVENANCE, 0.0, 0.0, DEFAULT_ERROR)
        ns, moved = model(self.machine, signature, name, kernels)
        return self._price(ns, kernels, cls, 0.0, moved)

    def kernel(self, kernel: KernelLaunch) -> Price:
        product = gemm.from_library(kernel.library)
        if product is not None:
            ns = gemm.product_ns(self.machine, product, self.sustained)
            return self._tiled(self._price(ns, (kernel,), "gemm", product.flops, product.moved), [product])
        return self._price(self._bare_ns(kernel), (kernel,), "other", 0.0, 0.0)

    def copy(self, kind: str, size: int) -> Price:
        moved = 2.0 * size if kind == "d2d" else float(size)  # read and written
        return self._price(copies.copy_ns(self.machine, kind, size), (), "copy", 0.0, moved)

    def memset(self, size: int) -> Price:
        return self._price(copies.memset_ns(self.machine, size), (), "memset", 0.0, float(size))

    def _products(
        self,
        products: list[gemm.Product],
        library: list[gemm.Product | None],
        kernels: tuple[KernelLaunch, ...],
        signature: OperatorSignature,
        name: str,
    ) -> Price:
        """Library products are priced one by one; kernels beside them (a bias) by their grids."""
        durations = tuple(
            _whole(gemm.product_ns(self.machine, p, self.sustained) if p is not None else self._bare_ns(k))
            for p, k in zip(library, kernels, strict=True)
        )
        expected = (
            gemm.from_signature(signature, name)
            if name in ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm")
            else []
        )
        flops = sum(p.flops for p in (expected or products))
        price = Price(durations, "gemm", PROVENANCE, flops, sum(p.moved for p in products), ERRORS["gemm"])
        return self._tiled(price, products)

    def _tiled(self, price: Price, products: list[gemm.Product]) -> Price:
        largest = max(products, key=lambda p: p.flops)
        tiles = gemm.plan(self.machine, largest, self.sustained)[1]
        return replace(price, format=largest.dtype, tiles=tiles)

    def _attention(self, a: attention.Attention, kernels: tuple[KernelLaunch, ...]) -> Price:
        ns = attention.attention_ns(self.machine, a)
        if a.backward and a.kind == "flash" and len(kernels) > 1:
            before, after = attention.helper_ns(self.machine, a)
            own = [
                before if "dot_do_o" in k.name else after if "convert_d" in k.name else 0.0 for k in kernels
            ]
            main = [i for i, share in enumerate(own) if not share]
            if main and len(main) < len(kernels):
                each = max(self.machine.fit.floor_ns, (ns - sum(own)) / len(main))
                durations = tuple(_whole(share or each) for share in own)
                return Price(durations, "attention", PROVENANCE, a.flops, a.moved, ERRORS["attention"])
        return self._price(ns, kernels, "attention", a.flops, a.moved)

    def _bare_ns(self, kernel: KernelLaunch) -> float:
        """A kernel without a model: waves of its blocks over the SMs' thread slots."""
        threads = max(1, prod(kernel.block))
        per_sm = max(1, min(self.gpu.max_blocks_per_sm, self.gpu.max_threads_per_sm // min(threads, 1024)))
        waves = prod(kernel.grid) / (per_sm * self.gpu.sms)
        return self.machine.fit.floor_ns + waves * THREAD_NS_PER_WAVE

    def _price(
        self, ns: float, kernels: tuple[KernelLaunch, ...], cls: str, flops: float, moved: float
    ) -> Price:
        durations = split(ns, kernels, self.machine.fit.floor_ns)
        return Price(durations, cls, PROVENANCE, flops, moved, ERRORS.get(cls, DEFAULT_ERROR))


def split(ns: float, kernels: tuple[KernelLaunch, ...], floor: float) -> tuple[int, ...]:
    """`ns` over `kernels` by their threads; library kernels take what the floors of others leave."""
    if len(kernels) <= 1:
        return (_whole(ns),)
    libraries = [bool(k.library) for k in kernels]
    if any(libraries):
        rest = max(floor, ns - floor * libraries.count(False)) / libraries.count(True)
        return tuple(_whole(rest if is_library else floor) for is_library in libraries)
    threads = [max(1, prod(k.grid) * prod(k.block)) for k in kernels]
    floor = min(floor, ns / len(kernels))
    spare = ns - floor * len(kernels)
    total = sum(threads)
    # Cumulative rounding: the parts add up to the whole.
    ends, done = [], 0.0
    for count in threads:
        done += floor + spare * count / total
        ends.append(_whole(done))
    return tuple(max(1, end - start) for start, end in zip([0, *ends[:-1]], ends, strict=True))


def _whole(ns: float) -> int:
    return max(1, round(ns))

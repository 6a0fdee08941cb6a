"""The analytic cost model: every operator and kernel gets a duration, never a silent zero."""

from __future__ import annotations

from dataclasses import replace

from phantora.cost import cupy, sparse, transfers, triton_work
from phantora.cost.families import base_name, gemm, identify
from phantora.cost.family import Estimate
from phantora.cost.kernels import UNKNOWN_WAVE_ERROR, covered_ns, spins, split, unknown_ns, whole
from phantora.cost.machine import Machine
from phantora.cost.tensors import as_measured
from phantora.cost.types import KernelLaunch, L2State, OperatorSignature, Price
from phantora.hardware.types import Gpu
from phantora.ttir.work import LOOPS

PROVENANCE = "analytic"
# 90th percentile of the relative error by class, from validation/compare/kernels.py.
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
OF_PROGRAMS = ("triton::", "cuda::")  # kernels without operator: equal names are not equal kernels


class AnalyticModel:
    """Implements :class:`phantora.cost.types.CostModel` for `gpu`."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.machine = Machine(gpu)

    def operator(
        self, signature: OperatorSignature, kernels: tuple[KernelLaunch, ...], l2: L2State | None = None
    ) -> Price:
        """Price of an operator's kernels together: by its Triton code, its fused parts or its family."""
        signature = as_measured(signature)
        name = base_name(signature.name)
        if signature.work is not None:
            done = triton_work.estimate(self.machine, signature.work)
            if LOOPS in signature.work.unknown:
                least = triton_work.by_tensors(self.machine, signature, bool(signature.work.dots))
                done = replace(done, ns=max(done.ns, least.ns), error=least.error)
            return self._price(done, kernels, triton_work.class_of(name, signature.work))
        if signature.name.startswith(OF_PROGRAMS):  # a program whose work is unknown: the name has no class
            return self._price(triton_work.by_tensors(self.machine, signature, signature.products), kernels, "other")
        family, cls = identify(name)
        kernels = tuple(family.call_of(signature, kernel) for kernel in kernels)
        found = None if family.takes_libraries else gemm.of_calls(self.machine, signature, name, kernels)
        found = found or sparse.estimate(self.machine, signature, kernels)
        return self._price(found or family.estimate(self.machine, signature, name, kernels), kernels, cls)

    def by_kernels(self, kernels: tuple[KernelLaunch, ...]) -> Price:
        """An operator of which nothing is known but what it launched."""
        parts = tuple(unknown_ns(self.machine, kernel) for kernel in kernels)
        return self._price(Estimate(sum(parts), 0.0, parts=parts, error=UNKNOWN_WAVE_ERROR), kernels, "other")

    def kernel(self, kernel: KernelLaunch) -> Price:
        """Price of one kernel without operator: a product by its extents, CuPy's by its name, else by its grid."""
        if found := cupy.estimate(self.machine, kernel):
            return self._price(found, (kernel,), "elementwise")
        known = spins(kernel) or gemm.of_call(self.machine, kernel.library) is not None
        return self.covered(kernel) if known else self.by_kernels((kernel,))

    def covered(self, kernel: KernelLaunch) -> Price:
        """Price of a kernel that an operator launched after it had waited: its work is in the operator's price."""
        product = gemm.of_call(self.machine, kernel.library)
        return self._price(product or Estimate(covered_ns(self.machine, kernel), 0.0), (kernel,), "other")

    def copy(self, kind: str, size: int) -> Price:
        """Price of a copy of `size` bytes; `kind` is ``h2d``, ``d2h`` or ``d2d``."""
        moved = 2.0 * size if kind == "d2d" else float(size)  # read and written
        return self._price(Estimate(transfers.copy_ns(self.machine, kind, size), moved), (), "copy")

    def memset(self, size: int) -> Price:
        """Price of setting `size` bytes."""
        return self._price(Estimate(transfers.memset_ns(self.machine, size), float(size)), (), "memset")

    def _price(self, found: Estimate, kernels: tuple[KernelLaunch, ...], cls: str) -> Price:
        cls = found.cls or cls
        parts = tuple(map(whole, found.parts))
        durations = parts or split(found.ns, kernels, self.machine.fit.floor_ns)
        error = found.error if found.error is not None else ERRORS.get(cls, DEFAULT_ERROR)
        return Price(
            durations,
            cls,
            PROVENANCE,
            flops=found.flops,
            bytes=found.moved,
            error=error,
            format=found.format,
            tiles=found.tiles,
            sms=found.sms,
            computed=found.computed,
        )

"""Kernels that torch.compile's Inductor generates: each tensor among their arguments passes memory once."""

from __future__ import annotations

from phantora.cost import coordinates
from phantora.cost.coordinates import Place
from phantora.cost.families import elementwise, flex_attention
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import on_gpu, traffic
from phantora.cost.types import OperatorSignature


def classify(name: str) -> str | None:
    """Inductor names a kernel by its kind (pointwise, reduction, template) and what was fused into it."""
    if not name.startswith("triton_") or flex_attention.classify(name):
        return None
    return "elementwise" if _pointwise(name) else "reduction"


def _pointwise(name: str) -> bool:
    return name.startswith("triton_poi")


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Results are among the arguments."""
    bare = elementwise.without_operands(machine, signature, kernels) if _pointwise(name) else None
    return bare or passes_arguments(machine, signature)


def passes_arguments(machine: Machine, signature: OperatorSignature) -> Estimate:
    """Each tensor among the arguments, results included, passes memory once."""
    moved = float(sum(traffic(t) for t in on_gpu(signature.args)))
    return Estimate(machine.memory_ns(moved), moved)


def places(signature: OperatorSignature, name: str, compute: str, launches: int) -> tuple[Place, ...]:
    """Reductions by their rows."""
    if _pointwise(name):
        return coordinates.by_size(signature, name, compute, launches)
    images, dims = "norm" in name, coordinates.reduced(signature)
    return coordinates.by_rows(signature, name, launches, dims, images=images)


FAMILY = Family("fused", classify=classify, estimate=estimate, places=places)

"""Random numbers and dropout."""

from __future__ import annotations

from phantora.cost.families.elementwise import operands
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import nbytes
from phantora.cost.types import OperatorSignature

NAMES = frozenset((
    "uniform", "normal", "random", "bernoulli", "exponential", "geometric", "rand", "randn", "randint",
    "native_dropout", "dropout", "_fused_dropout", "multinomial", "cauchy", "log_normal", "randperm", "poisson",
))  # fmt: skip
# Of a vectorised stream's speed, and the generator's rounds before the first store (traces on H200, docs/accuracy.md).
SHARE, FLOOR_NS = 0.80, 800.0


def classify(name: str) -> str | None:
    """By name, in place or not, or like another tensor."""
    stem = name.rstrip("_")
    return "random" if stem in NAMES or (stem.endswith("_like") and stem.startswith("rand")) else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Inputs are read, the result is written."""
    inputs, output = operands(signature, name)
    moved = float(nbytes(output) + sum(nbytes(t) for t in inputs))
    return Estimate(FLOOR_NS + machine.memory_ns(moved, SHARE), moved)


FAMILY = Family("random numbers", classify, estimate, 70)

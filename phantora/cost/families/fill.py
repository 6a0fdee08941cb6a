"""Fills and factories: nothing is read."""

from __future__ import annotations

from math import prod

from phantora.cost.families.elementwise import operands
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import nbytes
from phantora.cost.types import OperatorSignature

NAMES = frozenset(
    (
        "fill",
        "zero",
        "zeros",
        "ones",
        "full",
        "empty",
        "new_zeros",
        "new_ones",
        "new_full",
        "arange",
        "linspace",
        "logspace",
        "eye",
    )
)
# Of a vectorised stream's speed; cycles of an SM per element: 2-byte fills are bound by their stores. Both follow from
# single kernels on an H200 (validation/probes/kernel_bench.py).
SHARE, CYCLES = 1.06, 0.156
COUNTING = ("arange", "linspace", "logspace")
COUNTING_CYCLES = 2.45
"""Cycles of an SM for each element that is computed from its index (`validation/probes/factories.py` on an H100)."""


def classify(name: str) -> str | None:
    """Class by name, in place or not, or like another tensor."""
    stem = name.rstrip("_")
    return "fill" if stem in NAMES or stem.endswith("_like") else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """The result is written once."""
    _, output = operands(signature, name)
    moved = float(nbytes(output))
    cycles = COUNTING_CYCLES if name in COUNTING else CYCLES
    stores = machine.fit.floor_ns + machine.cycles_ns(prod(output.shape) * cycles)
    return Estimate(max(machine.memory_ns(moved, SHARE), stores), moved)


FAMILY = Family("fill", classify=classify, estimate=estimate, precedence=75)

"""Distances of all pairs of rows without a product (cdist), and their gradients.

A block of 256 threads computes each distance. Backward, blocks of 1,024 threads each take 16 pairs and write every
pair's gradient, which other operators add up (ATen/native/cuda/DistanceKernel.cu). Constants: 67 operators on an H200
(validation/probes/index_operators.py).
"""

from __future__ import annotations

from math import ceil, prod

from phantora.cost.families.elementwise import passes_memory
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import item_bytes, nbytes, tensor_at
from phantora.cost.types import OperatorSignature

NAMES = ("_cdist_forward", "_cdist_backward")
BLOCK, COLUMNS = 256, 64  # values that threads take at once, forward and backward
PAIRS_NS = 900.0
PLAIN = (1.0, 2.0, float("inf"))
# SM cycles of a pair and of a round of its values, for norms that need no powers and for others.
FORWARD_CYCLES, FORWARD_ROUND_CYCLES = 340.0, {True: 47.0, False: 195.0}
BACKWARD_CYCLES, BACKWARD_ROUND_CYCLES = 50.0, {True: 42.0, False: 150.0}


def classify(name: str) -> str | None:
    """Class by name."""
    return "reduction" if name in NAMES else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Bound by the pairs, or by the gradients that are written for each of them."""
    backward = name.endswith("backward")
    a, b = tensor_at(signature.args, int(backward)), tensor_at(signature.args, 1 + backward)
    if a is None or b is None or len(a.shape) < 2 or len(b.shape) < 2:
        return passes_memory(machine, signature, name, kernels)
    pairs, width = prod(a.shape[:-1]) * b.shape[-2], a.shape[-1]
    p = next(
        (v for v in signature.args[2 + backward :] if isinstance(v, (int, float)) and not isinstance(v, bool)), 2.0
    )
    plain = float(p) in PLAIN
    if backward:
        cycles = BACKWARD_CYCLES + ceil(width / COLUMNS) * BACKWARD_ROUND_CYCLES[plain]
        moved = float(pairs * width * item_bytes(a.dtype))
    else:
        cycles = FORWARD_CYCLES + width / BLOCK * FORWARD_ROUND_CYCLES[plain]
        moved = float(nbytes(a) + nbytes(b) + pairs * item_bytes(a.dtype))
    work = machine.fit.floor_ns + PAIRS_NS + machine.cycles_ns(pairs * cycles)
    return Estimate(max(work, machine.memory_ns(moved)), moved)


FAMILY = Family("distances", classify=classify, estimate=estimate)

"""Operators on sparse tensors: what is stored moves, not the whole matrix."""

from __future__ import annotations

from math import prod

from phantora.cost.family import Estimate, Kernels
from phantora.cost.kernels import bare_ns
from phantora.cost.machine import Machine
from phantora.cost.tensors import item_bytes, nbytes, on_gpu
from phantora.cost.types import OperatorSignature

SHARE = 0.25  # of a stream's speed: rows picked by index, as other gathers
ERROR, UNKNOWN_ERROR = 0.7, 1.0


def estimate(machine: Machine, signature: OperatorSignature, kernels: Kernels) -> Estimate | None:
    """None if all tensors are dense.

    Each stored element picks a row of the dense operands, but nothing is read more than once; where it is not known how
    many are stored, kernels count by their grids.
    """
    given = on_gpu((*signature.args, *signature.outputs))
    sparse = [t for t in given if t.layout]
    if not sparse:
        return None
    if any(t.stored < 0 for t in sparse):
        parts = tuple(bare_ns(machine, kernel) for kernel in kernels)
        return Estimate(sum(parts) or machine.fit.floor_ns, 0.0, parts=parts, error=UNKNOWN_ERROR)
    stored = max(t.stored for t in sparse)
    dense = [t for t in given if not t.layout]
    picked = sum(min(max(prod(t.shape), 1), stored * t.shape[-1]) * item_bytes(t.dtype) for t in dense if t.shape)
    moved = float(sum(map(nbytes, sparse)) + picked)
    wide = max((t.shape[-1] for t in dense if t.shape), default=1)
    floors = max(0, len(kernels) - 1) * machine.fit.floor_ns
    return Estimate(machine.memory_ns(moved, SHARE) + floors, moved, 2.0 * stored * wide * bool(dense), error=ERROR)

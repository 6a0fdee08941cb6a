"""Operators on sparse tensors: what is stored moves, not the whole matrix.

Constants follow from 70 products of a CSR or a COO matrix with a dense one on an H200, and from 5 sampled ones on an
H100 (validation/probes/sparse.py, validation/compare/sparse.py). Other operators move what they touch.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot, prod

from phantora.cost.family import Estimate, Kernels
from phantora.cost.kernels import UNKNOWN_WAVE_ERROR, unknown_ns
from phantora.cost.machine import Machine
from phantora.cost.tensors import item_bytes, nbytes, on_gpu
from phantora.cost.types import OperatorSignature, TensorSpec
from phantora.ttir.work import SECTOR_BYTES

SHARE = 0.25  # of a stream's speed: rows picked by index, as other gathers
ERROR, PRODUCT_ERROR = 0.7, 0.35


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Constants of cuSPARSE's products. Cycles are of an SM."""

    start_ns: float = 11_000.0
    """Kernels that divide the rows among blocks."""
    csr_row: float = 105.0
    """Cycles for each row of a CSR matrix: its bounds, and its result, which is cleared first,"""
    csr_stored: float = 6.6
    """for each stored element,"""
    csr_value: float = 0.12
    """and for each value of the dense matrix that a stored element picks, of any format."""
    coo_stored: float = 1.0
    """Cycles for each stored element of a COO matrix, which becomes a CSR one first."""
    coo_value: float = 1.29
    vector_stored: float = 2.0
    """Cycles for each stored element, of both kinds with a vector."""
    l2_share: float = 0.65
    """Share of L2 that the dense matrix can fill."""
    sampled_hit: float = 0.80
    """Sampled products pick single values: a sector each. Share of L2's rate,"""
    sampled_miss: float = 0.41
    """and of memory's."""


CONSTANTS = Constants()


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
        parts = tuple(unknown_ns(machine, kernel) for kernel in kernels)
        return Estimate(sum(parts) or machine.fit.floor_ns, 0.0, parts=parts, error=UNKNOWN_WAVE_ERROR)
    product = product_ns(machine, signature)
    stored = max(t.stored for t in sparse)
    dense = [t for t in given if not t.layout]
    picked = sum(min(max(prod(t.shape), 1), stored * t.shape[-1]) * item_bytes(t.dtype) for t in dense if t.shape)
    moved = float(sum(map(nbytes, sparse)) + picked)
    floors = max(0, len(kernels) - 1) * machine.fit.floor_ns
    wide = max((t.shape[-1] for t in dense if t.shape), default=1)
    flops = 2.0 * stored * wide * bool(dense)
    if product is not None:
        return Estimate(max(product, machine.memory_ns(moved)) + floors, moved, flops=flops, error=PRODUCT_ERROR)
    return Estimate(machine.memory_ns(moved, SHARE) + floors, moved, flops=flops, error=ERROR)


def product_ns(machine: Machine, signature: OperatorSignature, c: Constants = CONSTANTS) -> float | None:
    """A sparse matrix by a dense one, or two dense ones where a sparse one has elements; None for other operators."""
    given = on_gpu(signature.args)
    sparse, dense = ([t for t in given if bool(t.layout) == kind and len(t.shape) == 2] for kind in (True, False))
    name = signature.name.rpartition("::")[2].split(".")[0]
    if len(sparse) != 1 or not dense or not name.endswith(("mm", "matmul")):
        return None
    if "sampled" in name:
        return _sampled(machine, sparse[0].stored, dense, c)
    stored, width, x = sparse[0].stored, dense[-1].shape[-1], dense[-1]
    start = machine.fit.floor_ns + c.start_ns
    if width == 1:
        return start + machine.cycles_ns(stored * c.vector_stored)
    if sparse[0].layout == "sparse_coo":
        cycles, each = stored * c.coo_stored, c.coo_value
    else:
        cycles, each = sparse[0].shape[0] * c.csr_row + stored * c.csr_stored, c.csr_value
    missed = max(0.0, 1.0 - c.l2_share * machine.gpu.l2_bytes / max(1, nbytes(x)))
    misses = missed * stored * width * item_bytes(x.dtype) / machine.stream_rate
    return start + machine.cycles_ns(cycles) + hypot(machine.cycles_ns(stored * width * each), misses)


def _sampled(machine: Machine, stored: int, dense: list[TensorSpec], c: Constants) -> float:
    """Each element is the product of a row of one matrix and a column of the other. What lies along the sum is read as
    it lies; otherwise each value costs a sector. What L2 does not hold comes from memory each time."""
    ns = machine.fit.floor_ns
    for position, t in enumerate(dense[-2:]):
        depth, step = t.shape[1 - position], t.stride[1 - position]
        asked = stored * depth * (item_bytes(t.dtype) if step == 1 else SECTOR_BYTES)
        hit = min(1.0, machine.reach / max(1, nbytes(t)))
        ns += asked * (
            hit / (machine.cache_rate * c.sampled_hit) + (1.0 - hit) / (machine.stream_rate * c.sampled_miss)
        )
    return ns

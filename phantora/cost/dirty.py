"""How much sooner an operator is done where L2 holds little that was written.

Lines of L2 that were written go to memory before others take their place, and an operator that reads from memory waits
for that. Tables were measured behind a copy, which leaves as many such lines as there can be. So an operator behind
others that mostly read takes less than the table's time out of memory: a product of 16 x 4,096 x 11,264 in bfloat16
takes 41.1 us behind a copy and 32.3 us behind a sum on an H100 (validation/probes/dirty_lines.py,
from which the constants are).
"""

from __future__ import annotations

from phantora.cost.tensors import nbytes, on_gpu
from phantora.cost.types import CacheState, OperatorSignature, Price
from phantora.hardware.types import Gpu
from phantora.wire.shared import L2_MOST_DIRTY, L2_REACH

MOST_SAVED = 0.3
"""Of an operator's time, at most."""
COMPUTES = frozenset(("gemm", "attention", "convolution"))
"""Classes that compute while memory is busy: they gain no more than they do out of L2."""


def saved_ns(gpu: Gpu, signature: OperatorSignature, price: Price, most: float, l2: CacheState) -> float:
    """By how many ns, at most `most`, `price` is shorter with L2 in the state `l2` than where as much of it was written
    as can be."""
    given = float(sum(nbytes(tensor) for tensor in on_gpu(signature.args)))
    moved = max(price.bytes, given, 1.0)
    if price.cls == "fill":  # who only writes does not wait
        return 0.0
    read = 0.5 * moved if price.cls == "copy" or signature.work is not None else given
    displaced = min(moved * (1.0 - l2.held), L2_REACH * gpu.l2_bytes)
    waits = L2_MOST_DIRTY * displaced * (read / moved) / gpu.hbm_bandwidth * 1e9
    return (1.0 - l2.dirty) * max(0.0, min(waits, most, MOST_SAVED * sum(price.durations)))

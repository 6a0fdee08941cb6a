"""Sectors of memory (32 bytes, the smallest transfer from L2 to an SM) that neighbouring threads of a kernel touch.

An elementwise kernel follows the dimensions of its result, the fastest first. An operand with another layout costs each
lane of a warp its own sector. L1 serves a sector that a block touches again.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

import numpy as np

from phantora.cost.tensors import item_bytes, layout
from phantora.cost.types import TensorSpec
from phantora.ttir.work import SECTOR_BYTES, WARP

BLOCK_ELEMENTS = 512  # elements that a block of 128 threads handles in all; a warp handles one a thread at once


@lru_cache(maxsize=16384)
def per_element(tensor: TensorSpec, result: TensorSpec) -> tuple[float, float]:
    """Sectors of `tensor` for each element of `result` when this is walked in its own order, as a warp's load and as a
    block's. Of the first ones; `tensor` broadcasts to `result`."""
    order = layout(result)
    shape = [result.shape[d] for d in order]
    count = min(BLOCK_ELEMENTS, prod(shape))
    if not order or not count:
        return 1.0, 1.0
    missing = len(result.shape) - len(tensor.shape)
    at = np.zeros(count, np.int64)
    for place, dim in zip(np.unravel_index(np.arange(count), shape), order, strict=True):
        own = dim - missing
        if own >= 0 and tensor.shape[own] != 1:
            at += place * tensor.stride[own]
    touched = at * item_bytes(tensor.dtype) // SECTOR_BYTES
    warp = min(WARP, count)
    return len(np.unique(touched[:warp])) / warp, len(np.unique(touched)) / count

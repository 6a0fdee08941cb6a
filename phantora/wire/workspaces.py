"""Measured workspaces of convolutions, as the cuDNN stub reads them from the shared memory.

A sorted array of :data:`layout.Workspace`: one key for all batches of a convolution. The stub
(``stub/cudnn/workspace.c``) makes the same key from the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from phantora.wire import layout

UNMEASURED = -1
_FACTOR = np.uint64(layout.GOLDEN)
_SHIFT = np.uint64(29)
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Block:
    """`n` convolutions of tensors with `d` dimensions."""

    form: Integers
    """[n], layout.ConvForm."""
    type: Integers
    """[n], layout.ConvType."""
    layout: Integers
    """[n], layout.ConvLayout."""
    x: Integers
    """[n, d]: extents of the input, batch and channels first."""
    w: Integers
    """[n, d]: extents of the filters."""
    stride: Integers
    """[n, d - 2]."""
    padding: Integers
    dilation: Integers
    usual: Integers
    """[n]: bytes, -1 (UNMEASURED) where they were not measured."""
    largest: Integers


def keys(block: Block) -> npt.NDArray[np.uint64]:
    """[n]: 64 bits of everything but the batch."""
    n, dims = block.x.shape
    head = np.stack([block.form, block.type, block.layout, np.full(n, dims)], axis=1)
    words = np.concatenate([head, block.x[:, 1:], block.w, block.stride, block.padding, block.dilation], axis=1).astype(
        np.uint64
    )
    mixed = np.zeros(n, np.uint64)
    for column in words.T:
        mixed = (mixed ^ column) * _FACTOR  # modulo 2 ** 64
        mixed ^= mixed >> _SHIFT
    return mixed


def pack(blocks: Sequence[Block]) -> np.ndarray[Any, np.dtype[np.void]]:
    """The array of ``layout.Workspace``, by key and batch; of equal convolutions the first counts."""
    rows = np.zeros(sum(len(block.x) for block in blocks), layout.dtype(layout.Workspace))
    if not len(rows):
        return rows
    rows["key"] = np.concatenate([keys(block) for block in blocks])
    rows["batch"] = np.concatenate([block.x[:, 0] for block in blocks])
    rows["usual"] = np.concatenate([block.usual for block in blocks])
    rows["largest"] = np.concatenate([block.largest for block in blocks])
    rows = rows[np.lexsort((rows["batch"], rows["key"]))]  # stable
    again = (rows["key"][1:] == rows["key"][:-1]) & (rows["batch"][1:] == rows["batch"][:-1])
    first: np.ndarray[Any, np.dtype[np.void]] = rows[np.concatenate([[True], ~again])]
    return first

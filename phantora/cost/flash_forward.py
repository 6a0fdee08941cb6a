"""Forward pass of FlashAttention 2 as torch has it: its blocks, and the parts into which it splits the keys.

A block has 128 queries (64 of heads of 256, whose tiles fill a Hopper's shared memory) and steps over tiles of 128
keys, of 64 where heads have more than 64 elements. Two blocks lie on an SM. Where the queries are few, the keys are
split into parts for blocks of 64 queries (by the library's num_splits_heuristic), and a second kernel joins them.

Times are of an H200 at its usual clock. 716 operators of its table and of
`validation/measurements/2026-11-30-h200/shape_operators.parquet` are 6.5 % off on average; 42 others 7.3 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

STEP_NS, STEP_ELEMENT_NS = 571.0, 19.2  # 128 queries and 64 keys: the softmax, and an element of a head
BLOCK_NS, BLOCK_ELEMENT_NS = 3820.0, 11.1  # what a block takes next to its steps
START_NS = 1590.0
ALONE = 0.67  # of a block that has an SM for itself, relative to one of two
EXPOSED = 0.52  # share of the longest block after which nothing is left to do, under a causal mask
SPLIT_STEP_NS, SPLIT_ELEMENT_NS = 482.0, 10.8  # 64 queries and 64 keys of a part
SPLIT_CAUSAL = 0.6  # share of the parts' steps under a causal mask
JOIN_NS, JOIN_RATE = 5090.0, 1780.0  # the second kernel, which reads each part in float32: bytes/ns
RESIDENT = 2  # blocks on an SM
WIDE_HEAD = 256
FULL, SPLIT_AGAIN = 0.8, 0.85  # of num_splits_heuristic


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The counts of a call; `head` is padded to one that FlashAttention has kernels for."""

    sequences: int
    """Heads of all sequences of the batch."""
    queries: int
    keys: int
    head: int
    causal: bool
    splits: bool = True
    """Keys may be split: neither dropout nor packed sequences."""


def forward_ns(shape: Shape, sms: int, extra_ns: float = 0.0, small_blocks: bool = True) -> float:
    """Time of all kernels. `extra_ns` is added to each step; `small_blocks`: heads of 256 have blocks of 64 queries."""
    parts = parts_of(shape, sms) if shape.splits else 1
    slots = RESIDENT * sms
    if parts > 1:
        tile = _split_tile(shape.head)
        steps = ceil(ceil(shape.keys / tile) / parts) * tile / 64
        waves = _waves(shape.sequences * ceil(shape.queries / 64) * parts / slots)
        if shape.causal:
            waves = max(waves * SPLIT_CAUSAL, ALONE)
        join = JOIN_NS + shape.sequences * shape.queries * shape.head * 4 * (parts + 0.5) / JOIN_RATE
        return START_NS + waves * steps * (SPLIT_STEP_NS + SPLIT_ELEMENT_NS * shape.head + extra_ns / 2) + join
    rows, tile = 64 if shape.head >= WIDE_HEAD and small_blocks else 128, 128 if shape.head <= 64 else 64
    blocks, steps = ceil(shape.queries / rows), ceil(shape.keys / tile) * tile / 64
    step = (STEP_NS + STEP_ELEMENT_NS * shape.head + extra_ns) * rows / 128
    block = BLOCK_NS + BLOCK_ELEMENT_NS * shape.head
    waves, longest = shape.sequences * blocks / slots, block + steps * step
    if not shape.causal:
        return START_NS + _waves(waves) * longest
    mean = block + steps * step * (blocks + 1) / (2 * blocks)
    return START_NS + max(waves * mean + EXPOSED * steps * step, longest * ALONE)


def parts_of(shape: Shape, sms: int) -> int:
    """Parts of the keys; 1: they are not split."""
    blocks, slots = shape.sequences * ceil(shape.queries / 64), RESIDENT * sms
    tiles = ceil(shape.keys / _split_tile(shape.head))
    if blocks >= FULL * slots:
        return 1
    used: dict[int, float] = {}
    for parts in range(1, min(128, slots, tiles) + 1):
        if parts == 1 or ceil(tiles / parts) != ceil(tiles / (parts - 1)):
            waves = blocks * parts / slots
            used[parts] = waves / ceil(waves)
    return next(parts for parts, share in used.items() if share >= SPLIT_AGAIN * max(used.values()))


def _split_tile(head: int) -> int:
    """Keys of a tile of a part."""
    return 256 if head <= 64 else 128 if head <= 128 else 64


def _waves(waves: float) -> float:
    """Time of `waves` of equal blocks, in whole ones: where the last is half full, each has an SM for itself."""
    last = waves - int(waves)
    return int(waves) + (0.0 if last == 0.0 else ALONE if last <= 1 / RESIDENT else 1.0)

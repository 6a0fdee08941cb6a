"""Backward pass of FlashAttention 2 as torch has it: its main kernel, by blocks and tiles.

A block has 128 keys (64 where heads are wide) and steps over tiles of 128 or 64 queries. It fills the registers of an
SM, so one lies on each. Under a causal mask a block skips the queries before its keys.

Times are of an H200 at its usual clock, by 647 operators without dropout of its table and of
`validation/measurements/2026-11-30-h200/shape_operators.parquet`: fitted to 452, the others are 3.5 % off on average.
"""

from __future__ import annotations

from math import ceil

from phantora.cost.flash_forward import Shape

# By elements of a head up to which they hold: queries and keys of a tile, ns of a step,
# and of a step's element of a head.
TILES = ((64, 128, 128, 1950.0, 44.2), (128, 64, 128, 2226.0, 15.95), (256, 64, 64, 204.0, 19.3))
BLOCK_NS, BLOCK_ELEMENT_NS = 3600.0, 10.8  # what a block takes next to its steps
EXPOSED = 0.58  # share of the longest block after which nothing is left to do, under a causal mask
SCORES = 128 * 64  # that `extra_ns` is of


def backward_ns(shape: Shape, sms: int, extra_ns: float = 0.0) -> float:
    """Time of the main kernel. `extra_ns` is added for each `SCORES` of a step."""
    rows, columns, step, element = next((tile[1:] for tile in TILES if shape.head <= tile[0]), TILES[-1][1:])
    step += element * shape.head + extra_ns * rows * columns / SCORES
    block = BLOCK_NS + BLOCK_ELEMENT_NS * shape.head
    blocks, steps = ceil(shape.keys / columns), ceil(shape.queries / rows)
    waves = shape.sequences * blocks / sms
    if not shape.causal:
        return ceil(waves) * (block + steps * step)
    before = shape.queries - shape.keys  # the mask ends at the last query and the last key
    counts = [max(0, steps - max(0, (place * columns + before) // rows)) for place in range(blocks)]
    mean, longest = block + sum(counts) / blocks * step, max(counts) * step
    return max(waves * mean + EXPOSED * longest, block + longest)

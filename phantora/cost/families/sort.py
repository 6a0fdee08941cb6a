"""Sorting and selecting the largest.

Rows of up to 4,096 are sorted by a block each; longer ones by radix passes over all rows at once or, where rows are
many, row by row (ATen/native/cuda/Sort.cu, SortStable.cu). topk selects in a block for each row, or lets blocks share
rows, and sorts what it selected (ATen/native/cuda/TensorTopK.cu).
"""

from __future__ import annotations

from math import ceil, hypot, log2, prod

from phantora.cost import coordinates
from phantora.cost.coordinates import Place
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import item_bytes, on_gpu
from phantora.cost.types import OperatorSignature

NAMES = ("sort", "topk", "argsort", "msort", "kthvalue", "median", "nanmedian")
# All ns are fitted to 400 operators of the H200's table; they go with the clock.
TILES = (32, 128, 1024, 2048, 4096)  # rows are filled up to the next of these
# And per byte of a key.
TILE_NS = ((3950.0, 0.0), (2000.0, 700.0), (5700.0, 2600.0), (5000.0, 2950.0), (6000.0, 3400.0))
TILE_ROW_NS = (0.7, 2.7, 16.3, 30.0, 60.0)  # of 2-byte keys, where rows fill the GPU
WIDER_KEYS = 0.33  # of that, per further byte
FULL_SORT_ROWS = 128  # fewer long rows are sorted as one
PASS_NS, PASS_KEY_NS, PASS_FIXED_NS, PASS_FIXED_KEY_NS = 6500.0, 0.0094, 5200.0, 0.0063
ROW_BITS, ROW_PASS_NS, ROW_PASS_KEY_NS, INDEX_NS = 6, 2000.0, 0.0114, 0.0037  # row by row: bits of a pass
SHARED = ((20, 20_000), (40, 10_000), (80, 8_000), (200, 5_000), (800, 3_000), (4_000, 800))  # rows, and their length
SHARED_ELSE = 400
SELECT_NS, SELECT_MORE_NS, SELECT_LONG_NS = 2900.0, 800.0, 3.8  # a block's; of more than one; per element
# Per doubling of rows; where these fill the GPU.
SELECT_DOUBLING_NS, SELECT_ROW_NS, SELECT_ELEMENT_NS = 200.0, 0.6, 0.0344
COUNT_NS, COUNT_ROW_NS, COUNT_ELEMENT_NS = 4600.0, 3.4, 0.0019  # for each byte of the keys
COLLECT_NS, COLLECT_ELEMENT_NS = 16_000.0, 0.0035


def classify(name: str) -> str | None:
    """Class by name, in place or not."""
    return "sort" if name.rstrip("_") in NAMES else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Bytes are those of the keys."""
    given = on_gpu(signature.args)
    if not given or not given[0].shape:
        return Estimate(machine.fit.floor_ns, 0.0)
    x = given[0]
    width, elements = item_bytes(x.dtype), prod(x.shape)
    row = max(1, x.shape[-1])
    rows = max(1, elements // row)
    if name.startswith(("topk", "kthvalue", "median")):
        chosen = next((v for v in signature.args[1:2] if type(v) is int), 1)
        ns = select_ns(rows, row, width, chosen) + (rows_ns(rows, chosen, width) if chosen > 1 else 0.0)
    else:
        ns = rows_ns(rows, row, width)
    return Estimate(ns / machine.clock_ratio, float(elements * width))


def rows_ns(rows: int, row: int, width: int) -> float:
    """Sorting `rows` of `row` keys of `width` bytes each, at the clock of the H200."""
    for tile, (start, per_byte), each in zip(TILES, TILE_NS, TILE_ROW_NS, strict=True):
        if row <= tile:
            wider = 1.0 + WIDER_KEYS * (width - 2) if tile > TILES[0] else 1.0
            return hypot(start + per_byte * width, rows * each * wider)
    keys = rows * row
    if rows == 1:
        return passes_ns(keys, width)
    if rows < FULL_SORT_ROWS:
        return passes_ns(keys, width) + passes_ns(keys, 1)
    return ceil(8 * width / ROW_BITS) * (ROW_PASS_NS + keys * ROW_PASS_KEY_NS) + keys * INDEX_NS


def passes_ns(keys: int, width: int) -> float:
    """Sorting all `keys` of `width` bytes, at the clock of the H200."""
    return PASS_FIXED_NS + keys * PASS_FIXED_KEY_NS + width * (PASS_NS + keys * PASS_KEY_NS)


def select_ns(rows: int, row: int, width: int, chosen: int) -> float:
    """Finding the largest of each of `rows`, unsorted."""
    shared = next((length for most, length in SHARED if rows <= most), SHARED_ELSE)
    if row >= shared:
        count = COUNT_NS + rows * COUNT_ROW_NS + rows * row * COUNT_ELEMENT_NS
        return width * count + COLLECT_NS + rows * row * COLLECT_ELEMENT_NS
    block = SELECT_NS + SELECT_MORE_NS * (chosen > 1) + row * SELECT_LONG_NS + log2(rows + 1) * SELECT_DOUBLING_NS
    return block + rows * (SELECT_ROW_NS + row * SELECT_ELEMENT_NS)


def places(signature: OperatorSignature, name: str, compute: str, launches: int) -> tuple[Place, ...]:
    """Rows."""
    return coordinates.by_rows(signature, name, launches)


FAMILY = Family("sort", classify=classify, estimate=estimate, precedence=80, places=places)

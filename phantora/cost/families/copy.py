"""Copies of one tensor, with another layout, dtype or place, or of parts of it."""

from __future__ import annotations

from phantora.cost import coordinates
from phantora.cost.coordinates import Place
from phantora.cost.families.elementwise import passes_memory
from phantora.cost.family import Family
from phantora.cost.types import OperatorSignature

NAMES = frozenset((
    "copy", "_to_copy", "clone", "contiguous", "to", "_foreach_copy", "view_copy", "expand_copy", "repeat", "roll",
    "flip", "constant_pad_nd", "permute_copy", "_reshape_copy", "slice_copy", "as_strided_copy",
))  # fmt: skip


def classify(name: str) -> str | None:
    """By name or its end, in place or not."""
    stem = name.rstrip("_")
    return "copy" if stem in NAMES or stem.endswith("_copy") else None


def places(signature: OperatorSignature, name: str, compute: str, launches: int) -> tuple[Place, ...]:
    """Bytes; of rows that an index picks, the rows."""
    if name.startswith("index"):
        return coordinates.by_rows(signature, name, launches)
    return coordinates.by_size(signature, name, compute, launches)


FAMILY = Family("copy", classify, passes_memory, 50, places=places)

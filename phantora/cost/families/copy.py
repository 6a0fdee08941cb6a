"""Copies of one tensor, with another layout, dtype or place, or of parts of it."""

from __future__ import annotations

from phantora.cost.families.elementwise import passes_memory
from phantora.cost.family import Family

NAMES = frozenset(
    (
        "copy",
        "_to_copy",
        "clone",
        "contiguous",
        "to",
        "_foreach_copy",
        "view_copy",
        "expand_copy",
        "repeat",
        "roll",
        "flip",
        "constant_pad_nd",
        "permute_copy",
        "_reshape_copy",
        "slice_copy",
        "as_strided_copy",
    )
)


def classify(name: str) -> str | None:
    """Class by name or its end, in place or not."""
    stem = name.rstrip("_")
    if stem == "index_copy":  # writes the rows of an index
        return None
    return "copy" if stem in NAMES or stem.endswith("_copy") else None


FAMILY = Family("copy", classify=classify, estimate=passes_memory, precedence=50)

"""Fold of a sweep's point: one process per folded axis, its ends and a representative, or all ranks."""

from __future__ import annotations

from dataclasses import dataclass

from phantora.fold.mesh import Fold
from phantora.fold.syntax import ALL, FIRST, NEVER_FOLDED, describe, format_axis, parse_fold, split_axis
from phantora.spec import OFF

ONE, ENDS = "one", "ends"
MODES = (ONE, ENDS, OFF)
"""Modes from the fewest processes to all ranks; if one is refused, the next is tried."""
FEW = 8
"""Points of at most this many ranks are not folded."""


@dataclass(frozen=True)
class Folding:
    """Fold of a point."""

    axes: str
    """The value of ``--fold``; "": all ranks run."""
    processes: int
    described: str = ""


def folding(axes: str, mode: str, world: int) -> Folding:
    """For a point whose mesh has `axes` (``pp=4,dp=8,tp=2``; "": unknown). Raises PhantoraError."""
    all_ranks = Folding("", world)
    if not axes or mode == OFF or world <= FEW:
        return all_ranks
    text = ",".join(_first_only(part) for part in axes.split(",")) if mode == ONE else axes
    fold: Fold | None = parse_fold(text, world)
    return Folding(text, len(fold.real), describe(fold)) if fold else all_ranks


def _first_only(part: str) -> str:
    name, size, mode = split_axis(part)
    return part if name in NEVER_FOLDED or mode == ALL else format_axis(name, size, FIRST)


def is_first_only(described: str) -> bool:
    """True if an axis of the fold has one process, its first rank."""
    return any(split_axis(part)[2] == FIRST for part in described.split())


def next_mode(mode: str) -> str:
    """The one with more processes."""
    return MODES[MODES.index(mode) + 1]

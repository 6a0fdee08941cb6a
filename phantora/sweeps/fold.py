"""Fold of a sweep's point: one process per folded axis, its ends and a representative, or all ranks."""

from __future__ import annotations

from dataclasses import dataclass

from phantora.fold.discovery import FEW
from phantora.fold.mesh import Fold
from phantora.fold.syntax import ALL, FIRST, NEVER_FOLDED, describe, format_axis, parse_fold, split_axis
from phantora.spec import ALWAYS, OFF

ONE, ENDS = "one", "ends"
MODES = (ONE, ENDS, OFF)
"""Modes from the fewest processes to all ranks; if one is refused, the next is tried."""


@dataclass(frozen=True)
class Folding:
    """Fold of a point."""

    axes: str
    """The value of ``--fold``; "": that of the point."""
    processes: int
    """How many ranks are processes; of a fold that is still to be found, how many may be."""
    described: str = ""


def folding(axes: str, mode: str, world: int) -> Folding:
    """For a point whose mesh has `axes` (``pp=4,dp=8,tp=2``; "": unknown, so the run finds them). Raises
    PhantoraError."""
    all_ranks = Folding("", world)
    if mode == OFF or world <= FEW:
        return all_ranks
    if not axes:
        return Folding(ALWAYS, FEW)
    text = ",".join(_first_only(part) for part in axes.split(",")) if mode == ONE else axes
    fold: Fold | None = parse_fold(text, world)
    return Folding(text, len(fold.real), describe(fold)) if fold else all_ranks


def _first_only(part: str) -> str:
    name, size, mode = split_axis(part)
    return part if name in NEVER_FOLDED or mode == ALL else format_axis(name, size, FIRST)


def is_first_only(described: str) -> bool:
    """True if an axis of the fold has one process, its first rank."""
    return any(split_axis(part)[2] == FIRST for part in described.split())


def next_mode(mode: str, refused: Folding) -> str:
    """The one with more processes than the `refused` fold has."""
    return OFF if refused.axes == ALWAYS else MODES[MODES.index(mode) + 1]

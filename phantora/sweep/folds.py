"""Which ranks of a point are processes (docs/scale.md): of each folded axis one, its ends and a witness, or all."""

from __future__ import annotations

from dataclasses import dataclass

from phantora.spec import OFF
from phantora.wire.fold import LONE, NEVER_FOLDED, UNEVEN, WHOLE, Fold, parse_fold

ONE, ENDS = "one", "ends"
MODES = (ONE, ENDS, OFF)
"""From the fewest processes to all ranks; where one is refused, the next is tried."""
FEW = 8
"""Points of so many ranks run whole."""


@dataclass(frozen=True)
class Folding:
    """What `--fold` gets for a point."""

    axes: str
    """"" if all ranks run."""
    processes: int
    described: str = ""


def folding(axes: str, mode: str, world: int) -> Folding:
    """Of a point whose mesh has `axes` (``pp=4,dp=8,tp=2``; "" if nothing is known of it). Raises PhantoraError."""
    whole = Folding("", world)
    if not axes or mode == OFF or world <= FEW:
        return whole
    text = ",".join(_lone(part) for part in axes.split(",")) if mode == ONE else axes
    fold: Fold | None = parse_fold(text, world)
    return Folding(text, len(fold.real), fold.describe()) if fold else whole


def _lone(part: str) -> str:
    name = part.partition("=")[0]
    return part if name in NEVER_FOLDED or part.endswith(WHOLE) else part.removesuffix(UNEVEN) + LONE


def next_mode(mode: str) -> str:
    """The one with more processes."""
    return MODES[MODES.index(mode) + 1]

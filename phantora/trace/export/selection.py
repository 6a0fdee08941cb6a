"""Selection of a log's part: ranks, steps, kinds of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from phantora.errors import PhantoraError

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Selection:
    """None means all. A row belongs to a step when it lies in the step's time at least in part."""

    ranks: frozenset[int] | None = None
    steps: frozenset[int] | None = None
    kinds: frozenset[str] | None = None
    arrows: bool = True
    """Arrows from launches to kernels, records to waits, sends to receives, with the marks at both ends."""


def parse_numbers(text: str) -> frozenset[int]:
    """``"0-3,7"`` as a set of numbers."""
    numbers: set[int] = set()
    for piece in text.split(","):
        first, dash, last = piece.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
            raise PhantoraError(f"{text!r} is no list of numbers; write it like 0-3,7")
        numbers.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(numbers)


def parse_kinds(text: str) -> frozenset[str]:
    """``"kernel,collective"`` as a set of kinds of rows."""
    from phantora.trace.schema import KINDS

    kinds = frozenset(piece.strip() for piece in text.split(","))
    unknown = sorted(kinds - set(KINDS))
    if unknown:
        raise PhantoraError(f"unknown kind of row {', '.join(unknown)}; known: {', '.join(KINDS)}")
    return kinds

"""What differs between runs, with its causes."""

from __future__ import annotations

from collections.abc import Sequence

from phantora.trace.diff.causes import find_causes
from phantora.trace.diff.compare import Difference, Side, compare


def between(sides: Sequence[Side]) -> list[Difference]:
    """What differs between the first run and each other."""
    differences = []
    for side in sides[1:]:
        difference = compare(sides[0], side)
        difference.causes = find_causes(sides[0], side, difference)
        differences.append(difference)
    return differences

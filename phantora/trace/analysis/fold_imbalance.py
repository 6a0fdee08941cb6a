"""Error of a folded step if each rank owns another part of an optimizer (docs/scale.md).

Along such an axis the work of the ranks differs, and all wait in a collective for the last. The arrival of folded ranks
is unknown. A folded rank may arrive later than the last process, by about the time between the last two processes. The
estimate sums this time over the collectives of a step and assumes that none of it is hidden.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from phantora.fold.mesh import Fold, from_dict
from phantora.trace.analysis.communicators import Group
from phantora.trace.analysis.windows import Window, code
from phantora.trace.reader import Log

_COLLECTIVE = code("collective")


class FoldImbalance:
    """Adds up windows of steady steps."""

    def __init__(self, log: Log, groups: Mapping[int, Group]) -> None:
        fold = from_dict(log.metadata.extra["fold"]) if log.metadata.extra.get("fold") else None
        uneven = [number for number, axis in enumerate(fold.axes) if axis.uneven] if fold else []
        chosen = [comm for comm, group in groups.items() if fold and uneven and _spans(fold, uneven, group)]
        self._comms = np.array(sorted(chosen), np.int64)
        self._time, self._steps = 0, 0

    def add(self, window: Window) -> None:
        """Adds one step's collectives of such groups."""
        if not len(self._comms):
            return
        self._steps += 1
        mask = (window["kind"] == _COLLECTIVE) & window.own & np.isin(window["comm"], self._comms)
        comm, ready, start = (window[column][mask] for column in ("comm", "ready", "start"))
        order = np.lexsort((start, ready, comm))
        comm, ready, start = comm[order], ready[order], start[order]
        # The last two of each collective, which all its members know by the moment at which it began.
        last = np.append((comm[1:] != comm[:-1]) | (ready[1:] != ready[:-1]), True) if len(comm) else np.zeros(0, bool)
        paired = last[1:] & ~last[:-1]
        self._time += int((start[1:] - start[:-1])[paired].sum())

    def report(self) -> float | None:
        """ns of a step; None where there is no such axis."""
        return self._time / self._steps if self._steps else None


def _spans(fold: Fold, uneven: list[int], group: Group) -> bool:
    """True if the group has folded members, and its members differ along an uneven axis."""
    if set(group.ranks) <= set(fold.real) or len(group.ranks) < 2:
        return False
    first, last = fold.coordinates(group.ranks[0]), fold.coordinates(group.ranks[-1])
    return any(first[number] != last[number] for number in uneven)

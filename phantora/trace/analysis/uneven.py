"""By how much a folded step may be too short where ranks have parts of their own of an optimizer (docs/scale.md).

Along such an axis no rank does quite what another does, and all wait in a collective for the last. Which is last among
those that are no processes, nobody knows. The last process comes some time after the one before it: by about as much
may one that is none come later still. This adds up over the collectives of a step, as if none of it were hidden.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from phantora.trace.analysis.communicators import Group
from phantora.trace.analysis.windows import Window, code
from phantora.trace.reader import Log
from phantora.wire.fold import Fold, from_dict

_COLLECTIVE = code("collective")


class UnevenParts:
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
        mask = (window["kind"] == _COLLECTIVE) & window.own() & np.isin(window["comm"], self._comms)
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
    """Has the group members that are no processes, and does it reach along an uneven axis?"""
    if set(group.ranks) <= set(fold.real) or len(group.ranks) < 2:
        return False
    first, last = fold.coordinates(group.ranks[0]), fold.coordinates(group.ranks[-1])
    return any(first[number] != last[number] for number in uneven)

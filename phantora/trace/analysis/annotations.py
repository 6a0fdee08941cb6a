"""The annotation that is open on a rank's host at a given moment.

Threads of a rank are taken together: while autograd's thread runs, the main thread waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from phantora.trace.reader import Log
from phantora.wire.names import RECOMPUTED, TUNING

Ints = npt.NDArray[np.int64]
_IGNORED = ("nccl:", "ProfilerStep")  # names of single calls and of whole steps
MODULE = "module: "
"""Begins the names of annotations that tell which nn.Module runs (``phantora.rank.patches.modules``)."""


class Annotations:
    """All annotations of `ranks` (positions in this list are the ranks' positions)."""

    def __init__(self, log: Log, ranks: Sequence[int]) -> None:
        words = log.words("name")
        wanted = np.array([not word.startswith(_IGNORED) for word in words] + [False])
        position = {rank: i for i, rank in enumerate(ranks)}
        rows: list[list[tuple[int, int, int]]] = [[] for _ in ranks]
        for batch in log.batches(("rank", "name", "start", "end"), kinds=("annotation",), ranks=ranks):
            keep = wanted[batch["name"]] & (batch["end"] > batch["start"])
            columns = (batch[c][keep].tolist() for c in ("rank", "start", "end", "name"))
            for rank, start, end, name in zip(*columns, strict=True):
                rows[position[rank]].append((start, end, name))
        self.names = words
        self.spans: list[list[tuple[int, int, int]]] = [sorted(own, key=lambda r: (r[0], -r[1])) for own in rows]
        """Spans by rank position (start, end, name), ordered by start."""
        aside = {i for i, name in enumerate(words) if name == RECOMPUTED}
        self._changes = [innermost([span for span in own if span[2] not in aside]) for own in self.spans]
        self._within: dict[str, list[tuple[Ints, Ints]]] = {}  # starts and latest ends, by begin of a name and by rank

    def tuning(self, rank: npt.NDArray[np.integer], time: Ints) -> npt.NDArray[np.bool_]:
        """True where an autotuner was at work on rank position `rank` at `time`."""
        return self.within(TUNING, rank, time)

    def within(self, begins: str, rank: npt.NDArray[np.integer], time: Ints) -> npt.NDArray[np.bool_]:
        """True where an annotation whose name begins so was open on rank position `rank` at `time`."""
        found = np.zeros(len(time), np.bool_)
        if begins not in self._within:
            self._within[begins] = self._spans_of(begins)
        for i, (starts, latest) in enumerate(self._within[begins]):
            if len(starts):
                mine = np.flatnonzero(rank == i)
                place = np.searchsorted(starts, time[mine], "right") - 1
                found[mine] = (place >= 0) & (time[mine] < latest[place])
        return found

    def _spans_of(self, begins: str) -> list[tuple[Ints, Ints]]:
        """Starts of the annotations whose name begins so, and the latest end until each; by rank position."""
        named = {i for i, name in enumerate(self.names) if name.startswith(begins)}
        found = []
        for own in self.spans if named else ():
            spans = np.array([(start, end) for start, end, name in own if name in named], np.int64).reshape(-1, 2)
            found.append((spans[:, 0], np.maximum.accumulate(spans[:, 1])))  # one may lie within another
        return found

    def at(self, rank: npt.NDArray[np.integer], time: Ints) -> Ints:
        """Name index of the innermost annotation open on rank position `rank` at `time`, -1 for none."""
        found = np.full(len(time), -1, np.int64)
        bounds = np.searchsorted(rank, np.arange(len(self._changes) + 1))
        for i, (moments, names) in enumerate(self._changes):
            own = slice(int(bounds[i]), int(bounds[i + 1]))
            if own.start < own.stop:
                found[own] = names[np.searchsorted(moments, time[own], "right")]
        return found


def innermost(spans: list[tuple[int, int, int]]) -> tuple[Ints, Ints]:
    """Moments at which the innermost open annotation changes, and its name before the first moment and
    after each."""
    moments: list[int] = []
    names: list[int] = [-1]
    open_: list[tuple[int, int]] = []  # (end, name), outermost first

    def change(at: int, name: int) -> None:
        if moments and moments[-1] == at:
            names[-1] = name
        else:
            moments.append(at)
            names.append(name)

    def close(until: int) -> None:
        while open_ and open_[-1][0] <= until:
            end, _ = open_.pop()
            while open_ and open_[-1][0] <= end:
                open_.pop()
            change(end, open_[-1][1] if open_ else -1)

    for start, end, name in spans:
        close(start)
        open_.append((end, name))
        change(start, name)
    close(np.iinfo(np.int64).max)
    return np.array(moments, np.int64), np.array(names, np.int64)

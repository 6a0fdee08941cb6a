"""Reads the selected rows of a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from phantora.errors import PhantoraError
from phantora.trace.analysis.steps import Steps, find_steps
from phantora.trace.export.selection import Progress, Selection
from phantora.trace.reader import Batch, Log
from phantora.trace.schema import KINDS


class Selector:
    """The selected rows of a log."""

    def __init__(self, log: Log, selection: Selection, progress: Progress | None = None, passes: int = 1) -> None:
        """`progress` is called with the batches read and all that `passes` over the log will read."""
        self.log = log
        self.selection = selection
        self._progress, self._passes, self._passed = progress, passes, 0
        found = find_steps(log, selection.ranks)
        if not found.of_rank:
            wanted = sorted(selection.ranks or ())
            raise PhantoraError(
                f"{log.path}: no rows of rank {', '.join(map(str, wanted))}; the run had ranks 0 to "
                f"{log.metadata.world_size - 1}"
            )
        self.ranks = sorted(found.of_rank)
        if selection.steps is not None:
            kept = {r: [s for s in own if s.number in selection.steps] for r, own in found.of_rank.items()}
            if not any(kept.values()):
                raise PhantoraError(f"{log.path}: no such steps; the log has {', '.join(map(str, found.numbers()))}")
            found = Steps(source=found.source, of_rank=kept)
            self._begin = np.full(max(self.ranks) + 1, np.iinfo(np.int64).max)
            self._end = np.full(max(self.ranks) + 1, np.iinfo(np.int64).min)
            for rank, own in kept.items():
                if own:
                    self._begin[rank], self._end[rank] = own[0].start, own[-1].end
        self.steps = found

    def batches(self, columns: Sequence[str], kinds: Sequence[str] = KINDS, reverse: bool = False) -> Iterator[Batch]:
        """Batches of the selected rows that are of one of `kinds`."""
        chosen = self.selection
        wanted = [kind for kind in kinds if chosen.kinds is None or kind in chosen.kinds]
        if not wanted:
            return
        named = set(columns) | {"kind", "rank"}
        if chosen.steps is not None:
            named |= {"start", "end"}
        before, count = self._passed * self.log.num_batches, self.log.num_batches
        self._passed += 1
        for batch in self.log.batches(sorted(named), set(wanted), chosen.ranks, reverse):
            if self._progress is not None:
                self._progress(before + (count - batch.index if reverse else batch.index + 1), self._passes * count)
            if chosen.steps is not None:
                inside = (batch["end"] >= self._begin[batch["rank"]]) & (batch["start"] < self._end[batch["rank"]])
                rows = np.flatnonzero(inside)
                if not len(rows):
                    continue
                batch = Batch(batch.index, {c: v[rows] for c, v in batch.columns.items()}, batch.rows[rows])
            yield batch

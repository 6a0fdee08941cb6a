"""Which part of a log is wanted: ranks, steps, kinds of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from phantora.errors import PhantoraError
from phantora.trace.analysis.steps import Steps, find_steps
from phantora.trace.reader import Batch, Log
from phantora.trace.schema import KINDS

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Selection:
    """None means all. A row belongs to a step when it lies in the step's time at least in part."""

    ranks: frozenset[int] | None = None
    steps: frozenset[int] | None = None
    kinds: frozenset[str] | None = None
    arrows: bool = True
    """From launches to kernels, records to waits, sends to receives, with the marks that they begin and end at."""


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
    kinds = frozenset(piece.strip() for piece in text.split(","))
    unknown = sorted(kinds - set(KINDS))
    if unknown:
        raise PhantoraError(f"{', '.join(unknown)!s}: no such kind of row; there are {', '.join(KINDS)}")
    return kinds


class Selector:
    """Reads the selected rows of a log."""

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
                raise PhantoraError(
                    f"{log.path}: no such steps; the log has {', '.join(map(str, found.numbers()))}"
                )
            found = Steps(found.source, kept)
            self._begin = np.full(max(self.ranks) + 1, np.iinfo(np.int64).max)
            self._end = np.full(max(self.ranks) + 1, np.iinfo(np.int64).min)
            for rank, own in kept.items():
                if own:
                    self._begin[rank], self._end[rank] = own[0].start, own[-1].end
        self.steps = found

    def batches(
        self, columns: Sequence[str], kinds: Sequence[str] = KINDS, reverse: bool = False
    ) -> Iterator[Batch]:
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
                inside = (batch["end"] >= self._begin[batch["rank"]]) & (
                    batch["start"] < self._end[batch["rank"]]
                )
                rows = np.flatnonzero(inside)
                if not len(rows):
                    continue
                batch = Batch(batch.index, {c: v[rows] for c, v in batch.columns.items()}, batch.rows[rows])
            yield batch

"""Highest allocated memory of each rank in each step's stretch of its host: the allocator works when the host asks,
long before the GPU runs the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phantora.trace.analysis.steps import Step, Steps
from phantora.trace.reader import Log

Ints = npt.NDArray[np.int64]
_COLUMNS = ("value", "bytes")  # allocated, reserved


@dataclass
class Levels:
    """Bytes, by rank position."""

    peaks: list[dict[int, tuple[int, int]]]
    """(allocated, reserved) by number of the step."""
    highest_of: list[tuple[int, int]]

    def of_step(self, position: int, number: int) -> tuple[int, int]:
        """Peak bytes allocated and reserved of the rank at `position` in a step."""
        return self.peaks[position].get(number, (0, 0))

    def highest(self, position: int) -> tuple[int, int]:
        """Highest value of the whole run."""
        return self.highest_of[position]


def memory_levels(log: Log, ranks: Sequence[int], steps: Steps) -> Levels:
    """The highest levels of `ranks` by step."""
    edges = {rank: _edges(steps.of_rank[rank]) for rank in ranks}
    peak = {rank: np.zeros((2, len(own) + 1), np.int64) for rank, own in edges.items()}
    level = {rank: np.full((2, len(own) + 1), -1, np.int64) for rank, own in edges.items()}  # at the stretch's end
    for batch in log.batches(("rank", "end", *_COLUMNS), kinds=("memory",), ranks=ranks):
        order = np.argsort(batch["rank"], kind="stable")
        present, first = np.unique(batch["rank"][order], return_index=True)
        for rank, rows in zip(present.tolist(), np.split(order, first[1:]), strict=True):
            slot = np.searchsorted(edges[rank], batch["end"][rows], "right")
            for i, column in enumerate(_COLUMNS):
                np.maximum.at(peak[rank][i], slot, batch[column][rows])
                level[rank][i][slot] = batch[column][rows]  # of several the last counts
    peaks: list[dict[int, tuple[int, int]]] = []
    for rank in ranks:
        carried = np.stack([_carried(p, at) for p, at in zip(peak[rank], level[rank], strict=True)])
        place = range(1, 2 * len(steps.of_rank[rank]), 2)
        peaks.append(
            {
                step.number: (int(carried[0, i]), int(carried[1, i]))
                for step, i in zip(steps.of_rank[rank], place, strict=True)
            }
        )
    return Levels(peaks, [(int(peak[rank][0].max()), int(peak[rank][1].max())) for rank in ranks])


def _edges(steps: Sequence[Step]) -> Ints:
    """Odd stretches are the steps', even ones lie between."""
    top = int(np.iinfo(np.int64).max)
    edges: Ints = np.array([edge for s in steps for edge in (s.host[0], min(s.host[1], top - 1) + 1)], np.int64)
    return edges


def _carried(peak: Ints, level: Ints) -> Ints:
    """A stretch begins at the level that the last one before it left."""
    found: Ints = peak.copy()
    at = 0
    for i in range(len(peak)):
        found[i] = max(int(found[i]), at)
        at = int(level[i]) if level[i] >= 0 else at
    return found

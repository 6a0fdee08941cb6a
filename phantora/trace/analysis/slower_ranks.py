"""By how much a rank's kernels take longer than those of other ranks.

The sums of all kernels tell too little where the others wait for the rank: the collectives that wait slow the kernels
next to them. So a call counts with the mean of those of its operator and shape next to which no communication runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np
import numpy.typing as npt

from phantora.trace.analysis.occupancy import Occupancy
from phantora.trace.analysis.report import RankReport
from phantora.trace.analysis.windows import code

_KERNEL = code("kernel")
_STEPS = 4  # of a rank, that are compared
_SLOWER = 0.01  # relative: less is no difference between ranks
_MORE_WORK = 1.05  # times the flops of others: then a rank is late by its work


class SlowerRanks:
    """Gathers the kernels of a few steady steps of each rank."""

    def __init__(self, ranks: int) -> None:
        self._times: list[list[float]] = [[] for _ in range(ranks)]  # of a step's kernels, next to no communication

    def add(self, position: int, o: Occupancy) -> None:
        """Adds one step of the rank at `position`."""
        if len(self._times) < 2 or len(self._times[position]) == _STEPS:
            return
        begun = (o.device["start"] >= o.begin) & (o.device["start"] < o.end)
        own = np.flatnonzero(begun & (o.device["kind"] == _KERNEL))
        if not len(own):
            return
        start, end = o.device["start"][own], o.device["end"][own]
        edges = np.append(o.sweep.start, o.end)
        passed = np.append(0, np.cumsum(o.sweep.length * o.communication))
        alone = np.interp(end, edges, passed) == np.interp(start, edges, passed)
        kernels = np.stack([o.device["op"][own], o.device["shape"][own], o.device["name"][own]])
        _, place = np.unique(kernels, axis=1, return_inverse=True)
        self._times[position].append(_without_others(end - start, place, alone))

    def report(self, ranks: Sequence[RankReport]) -> dict[int, float]:
        """ns of a step, by rank, for the ranks whose kernels take longer than those of the median other rank."""
        means = [sum(times) / len(times) if times else 0.0 for times in self._times]
        found = {}
        for position, (one, own) in enumerate(zip(ranks, means, strict=True)):
            others = [time for other, time in enumerate(means) if other != position]
            if others and own > median(others) * (1 + _SLOWER):
                found[one.rank] = own - median(others)
        return found


def _without_others(length: npt.NDArray[np.int64], place: npt.NDArray[np.int64], alone: npt.NDArray[np.bool_]) -> float:
    """Sum of the calls, each with the mean of those of its kind (`place`) that are `alone`, if there are any."""
    time, calls = np.bincount(place, length), np.bincount(place)
    time_alone, calls_alone = np.bincount(place, length * alone), np.bincount(place, alone)
    return float(np.where(calls_alone > 0, calls * time_alone / np.maximum(calls_alone, 1), time).sum())


def times_the_work(ranks: Sequence[RankReport], rank: int) -> float:
    """The flops of a rank over those of the median other rank, where it has more; else 1."""
    flops = {one.rank: one.gpu.flops for one in ranks}
    usual = median(own for other, own in flops.items() if other != rank) if len(flops) > 1 else 0.0
    more = flops[rank] / usual if usual else 1.0
    return more if more > _MORE_WORK else 1.0


def kernel_time(rank: RankReport) -> float:
    """ns of a rank's device time in steady steps, communication left out."""
    return sum(time for name, time in rank.by_class.items() if name != "communication")

"""Steps of a run that waits for its DataLoader which found batches that were ready.

Workers make batches ahead, most of them during start-up. The steps that take these do not wait, and a longer run would
not have more of them. Later, workers deliver about as many batches at once as there are workers: one step waits, the
next ones do not. Whole such rounds, from one wait to another, stand for the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from phantora.trace.analysis.iterations import DATALOADER, Mark
from phantora.trace.analysis.loader import Loader

PREFETCHED = "prefetched batch"
"""The note of such a step."""
_WAITS = 0.5  # of the mean time by which a batch is late, for a step to count as one that waits

Stretch = tuple[int, int, int]
"""A step of a rank: number, first and last ns of its host."""


def prefetched(
    loader: Loader | None, steps: Mapping[int, Sequence[Stretch]], marks: Mapping[int, Sequence[Mark]]
) -> dict[int, str] | None:
    """The notes by number; `steps` and `marks` by rank. None if less than two steps wait for workers."""
    if loader is None or not loader.workers or not loader.limits:
        return None
    waited: dict[int, int] = {}
    for rank, own in steps.items():
        loads = [mark for mark in marks[rank] if mark.name.startswith(DATALOADER)]
        begins, times = np.array([mark.start for mark in loads], np.int64), [mark.end - mark.start for mark in loads]
        for number, begin, end in own:
            low, high = np.searchsorted(begins, (begin, end + 1)).tolist()
            waited[number] = max(waited.get(number, 0), max(times[low:high], default=0))
    numbers = sorted(waited)[1:]  # the first step waits for the start of the workers
    late = _WAITS * (loader.made - loader.used)
    waiting = [number for number in numbers if waited[number] > late]
    if len(waiting) < 2:
        return None
    return {number: PREFETCHED for number in numbers if not waiting[0] < number <= waiting[-1]}

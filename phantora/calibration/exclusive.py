"""Exclusive times: what an event takes without the events inside it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def exclusive_times(start: Ints, end: Ints, thread: Ints) -> Ints:
    """ns of each event less those of the events directly inside it on its thread. Events nest."""
    own = (end - start).astype(np.int64)
    open_events: list[int] = []
    before = None
    for at in np.lexsort((-end, start, thread)).tolist():
        if thread[at] != before:
            open_events.clear()
            before = thread[at]
        while open_events and end[open_events[-1]] <= start[at]:
            open_events.pop()
        if open_events:
            own[open_events[-1]] -= end[at] - start[at]
        open_events.append(at)
    return np.maximum(own, 0)

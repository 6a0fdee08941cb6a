"""Operators of the host in logs without work of a GPU: execution traces, and profiles of the CPU alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

import numpy as np

from phantora.trace.analysis.report import HostOperator
from phantora.trace.reader import Log
from phantora.trace.schema import DEVICE_KINDS

TIMES = "times"
"""What execution traces do not have (``RunMetadata.missing``)."""


def host_operators(log: Log, ranks: Collection[int]) -> list[HostOperator]:
    """Calls of each operator with its shapes, most first; empty for a log with work of a GPU."""
    if any(len(batch) for batch in log.batches(("rank",), kinds=DEVICE_KINDS, ranks=ranks)):
        return []
    found: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    timed = TIMES not in log.metadata.missing
    for batch in log.batches(("op", "shape", "start", "end"), kinds=("operator",), ranks=ranks):
        keys, place = np.unique(np.stack([batch["op"], batch["shape"]]), axis=1, return_inverse=True)
        length = np.bincount(place.reshape(-1), batch["end"] - batch["start"], keys.shape[1])
        count = np.bincount(place.reshape(-1), minlength=keys.shape[1])
        for (op, shape), number, time in zip(keys.T.tolist(), count.tolist(), length.tolist(), strict=True):
            found[op, shape][0] += number
            found[op, shape][1] += round(time)
    names, shapes = log.words("op"), log.words("shape")
    rows = [
        HostOperator(
            names[op] if op >= 0 else "", shapes[shape] if shape >= 0 else "", count, float(time) if timed else None
        )
        for (op, shape), (count, time) in found.items()
    ]
    return sorted(rows, key=lambda row: (-(row.time or 0.0), -row.count, row.name, row.shape))

"""Operators of the host: all of logs without work of a GPU (execution traces, profiles of the CPU), else those that run
on tensors of the CPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

import numpy as np

from phantora.trace.analysis.annotations import Annotations
from phantora.trace.analysis.report import HostOperator
from phantora.trace.reader import Log
from phantora.trace.schema import DEVICE_KINDS
from phantora.wire.names import CPU_OPERATORS

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


def cpu_operators(annotations: Annotations) -> list[HostOperator]:
    """Calls of long operators on tensors of the CPU by their line, longest first."""
    found: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    wanted = {i for i, name in enumerate(annotations.names) if name.startswith(CPU_OPERATORS)}
    for own in annotations.spans if wanted else ():
        for start, end, name in own:
            if name in wanted:
                found[name][0] += 1
                found[name][1] += end - start
    rows = [
        HostOperator(annotations.names[name].removeprefix("phantora: "), "", count, float(time))
        for name, (count, time) in found.items()
    ]
    return sorted(rows, key=lambda row: (-(row.time or 0.0), row.name))

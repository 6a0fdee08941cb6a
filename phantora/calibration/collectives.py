"""Durations of a real run's collectives, from the arrival of their last rank."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np

from phantora.hardware import MeasuredCollective
from phantora.trace.reader import Log

_FEWEST_CALLS = 3  # instances of a size
_OPERATIONS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
}
_KERNEL = re.compile(rf"nccl\w*?_({'|'.join(_OPERATIONS)})(?![a-z])")


def collective_curves(log: Log) -> tuple[MeasuredCollective, ...]:
    """Curves by operation and number of members: medians over at least three instances. Groups of which the log has not
    all ranks are left out: their time includes an unknown wait for the last rank."""
    members, ranks = _members(log), _ranks(log)
    names = log.words("name")
    times: dict[tuple[str, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    columns = ("name", "comm", "bytes", "ready", "end", "last_rank")
    for batch in log.batches(columns, kinds=("collective",)):
        for row in zip(*(batch[column].tolist() for column in columns), strict=True):
            name, comm, size, ready, end, last = row
            found, group = _KERNEL.search(names[name]), members.get(comm, frozenset())
            if found and last >= 0 and size > 0 and end > ready and group and group <= ranks:
                times[_OPERATIONS[found[1]], len(group)][size].append(end - ready)
    curves = []
    for (operation, count), by_size in sorted(times.items()):
        sizes = sorted(size for size, found in by_size.items() if len(found) >= _FEWEST_CALLS * count)
        if sizes:
            ns = tuple(float(np.median(by_size[size])) for size in sizes)
            curves.append(MeasuredCollective(operation, count, tuple(sizes), ns))
    return tuple(curves)


def _ranks(log: Log) -> set[int]:
    """Ranks with collectives in the log."""
    return {
        rank for batch in log.batches(("rank",), kinds=("collective",)) for rank in np.unique(batch["rank"]).tolist()
    }


def _members(log: Log) -> dict[int, frozenset[int]]:
    """Ranks of each communicator."""
    shapes, found = log.words("shape"), {}
    for batch in log.batches(("comm", "shape"), kinds=("communicator",)):
        for comm, shape in zip(batch["comm"].tolist(), batch["shape"].tolist(), strict=True):
            if shape >= 0 and shapes[shape]:
                found[comm] = frozenset(int(rank) for rank in shapes[shape].split(","))
    return found

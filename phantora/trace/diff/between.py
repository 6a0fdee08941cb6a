"""Differences between runs, with their causes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace

from phantora.trace.analysis.analyze import Filters, Progress
from phantora.trace.diff.apart import LEAST_ROWS, Apart
from phantora.trace.diff.causes import find_causes
from phantora.trace.diff.compare import Difference, Side, comparable, compare, gather
from phantora.trace.diff.render import headline
from phantora.trace.diff.validation import Validation, quantities, validated
from phantora.trace.reader import Log

Watched = Callable[[str], AbstractContextManager[Progress | None]]
"""Text about the work -> a context in which its progress is shown."""


def sides_of(logs: Sequence[Log], filters: Filters, watched: Watched | None = None) -> list[Side]:
    """The runs in the order given, read for a comparison. Of runs of which traces hold some ranks, the others have
    these ranks too. Against a real run that is seen from its start-up on, the simulation's own steps count; else its
    settled ones."""
    partial = [log for log in logs if log.metadata.real and len(log.metadata.ranks) < log.metadata.world_size]
    ranks = frozenset[int]()
    if partial and filters.ranks is None:
        ranks = frozenset.intersection(*(frozenset(log.metadata.ranks) for log in partial))
    if not any(log.metadata.real for log in logs):
        return _simulated(logs, filters, watched)
    found: list[Side] = []
    for log in sorted(logs, key=lambda log: not log.metadata.real):  # real ones first
        common = (ranks & frozenset(log.metadata.ranks)) or filters.ranks
        settle = not any(side.real and "start-up" in side.report.headline.apart for side in found)
        own = replace(filters, ranks=common, settle=settle)
        found.append(_read(log, own, watched, not partial))
    return [next(side for side in found if side.log is log) for log in logs]


def _simulated(logs: Sequence[Log], filters: Filters, watched: Watched | None) -> list[Side]:
    """The first run is read here, the others at the same time if they are large."""
    with ExitStack() as stack:
        apart: dict[int, Apart] = {}
        for place, log in list(enumerate(logs))[1 : len(os.sched_getaffinity(0))]:
            if min(log.num_rows, logs[0].num_rows) >= LEAST_ROWS:
                apart[place] = Apart(log, filters, True)
                stack.callback(apart[place].close)
        here = {place: _read(log, filters, watched) for place, log in enumerate(logs) if place not in apart}
        return [here[place] if place in here else apart[place].side() for place in range(len(logs))]


def _read(log: Log, filters: Filters, watched: Watched | None, arrivals: bool = True) -> Side:
    if watched is None:
        return gather(log, filters, arrivals=arrivals)
    with watched(f"reading {log.shown}") as progress:
        return gather(log, filters, progress, arrivals)


def between(sides: Sequence[Side]) -> list[Difference]:
    """Differences between the first run and each other."""
    return [_between(sides[0], side) for side in sides[1:]]


def _between(a: Side, b: Side) -> Difference:
    a, b = comparable(a, b)
    difference = compare(a, b)
    difference.causes = find_causes(a, b, difference)
    return difference


def validation(real: Log, simulated: Log, within: float) -> Validation:
    """A simulated run compared with a real one; `within` is a share."""
    a, b = sides_of([simulated, real], Filters())
    difference = _between(a, b)
    return validated(headline(difference), quantities(b, a, difference), within)

"""Ranks whose times in a step are equal: one of each group stands for all on a timeline of many ranks."""

from __future__ import annotations

from phantora.trace.analysis.report import Report, Times

ALONE = 8  # ranks that are shown each for itself, as on the page of one run (viewers/report.js)
_EQUAL = 0.01  # of a step


def equal_ranks(report: Report, step: int) -> list[list[int]]:
    """Groups of ranks, in order of their first; empty for few ranks, which are all shown."""
    if len(report.ranks) <= ALONE:
        return []
    groups: list[tuple[Times, list[int]]] = []
    for rank in report.ranks:
        own = next((each.times for each in rank.steps if each.number == step), None)
        if own is None:
            continue
        group = next((ranks for times, ranks in groups if _equal(times, own)), None)
        if group is None:
            groups.append((own, [rank.rank]))
        else:
            group.append(rank.rank)
    return [ranks for _, ranks in groups]


def _equal(a: Times, b: Times) -> bool:
    pairs = [(a.time, b.time), (a.compute, b.compute)]
    pairs += [(a.stalls.get(cause, 0.0), b.stalls.get(cause, 0.0)) for cause in a.stalls | b.stalls]
    return all(abs(x - y) < _EQUAL * b.time for x, y in pairs)

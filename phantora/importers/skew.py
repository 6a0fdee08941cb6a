"""Differences between the clocks of ranks: the kernels of one collective end at the same moment everywhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from phantora.importers.matching import Matches

_LEAST_NS = 1_000
"""Ranks see the end of a collective about so far apart although their clocks agree."""
_LEAST_COMMON = 3  # collectives that tell the skew of two ranks


@dataclass(frozen=True)
class Skew:
    """Lead of a rank's clock over the first rank's."""

    ns: int
    spread: int
    """Median deviation of single collectives, ns."""
    collectives: int
    """Number of collectives that show it."""

    @property
    def removed(self) -> int:
        """ns to take from the rank's times: nothing where the skew is within its spread."""
        return self.ns if abs(self.ns) > max(_LEAST_NS, 2 * self.spread) else 0


def estimate(matches: Sequence[Matches], ranks: Sequence[int]) -> dict[int, Skew]:
    """The skew of every rank that shares collectives with the first, directly or through others."""
    edges: dict[int, list[tuple[int, Skew]]] = {}
    for found in matches:
        members = list(found.first)
        for a, b in pairwise(members):
            i, j = found.common(a, b)
            kept = found.sequences[a].together[i]
            i, j = i[kept], j[kept]
            if len(i) < _LEAST_COMMON:
                continue
            apart = found.sequences[b].end[j] - found.sequences[a].end[i]
            middle = int(np.median(apart))
            edge = Skew(middle, int(np.median(np.abs(apart - middle))), len(i))
            edges.setdefault(a, []).append((b, edge))
            edges.setdefault(b, []).append((a, Skew(-edge.ns, edge.spread, edge.collectives)))
    first = min(ranks)
    known = {first: Skew(0, 0, 0)}
    waiting = deque([first])
    while waiting:
        rank = waiting.popleft()
        for other, edge in sorted(edges.get(rank, ()), key=lambda item: -item[1].collectives):
            if other not in known:
                before = known[rank]
                known[other] = Skew(before.ns + edge.ns, max(before.spread, edge.spread), edge.collectives)
                waiting.append(other)
    return known

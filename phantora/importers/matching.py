"""Matches calls of one collective on several ranks: by process group and place in its sequence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phantora.importers.rank import CODES, RankTrace, Vocabulary
from phantora.importers.schedule import Ints

_MOST_SHIFT = 4096  # collectives by which one rank's recording may begin later than another's
_ENDS_APART = re.compile(r"Broadcast|Reduce(?!Scatter)(?<!AllReduce)|SendRecv")
"""Collectives of which some ranks are done before others."""
_AGREE = 0.9  # of the collectives that two ranks have in common must be of one name and size


@dataclass
class Sequence:
    """The collectives of one group on one rank, in order of their start."""

    rows: Ints
    """Positions in the rank's rows."""
    content: Ints
    """A number for name and bytes: equal for what may be the same collective."""
    end: Ints
    """ns of the rank's clock."""
    together: npt.NDArray[np.bool_]
    """Collectives that end at the same moment on all ranks."""


@dataclass
class Matches:
    """Collectives of one group: seq of the first of each rank's sequence."""

    group: int
    sequences: dict[int, Sequence]
    """Sequences by rank."""
    first: dict[int, int]
    """First positions of matched ranks."""

    def common(self, a: int, b: int) -> tuple[Ints, Ints]:
        """Places, in the sequences of ranks `a` and `b`, of what both took part in."""
        begin = max(self.first[a], self.first[b])
        stop = min(self.first[rank] + len(self.sequences[rank].rows) for rank in (a, b))
        seq = np.arange(begin, max(begin, stop))
        return seq - self.first[a], seq - self.first[b]


def match(traces: Mapping[int, RankTrace], words: Vocabulary) -> list[Matches]:
    """The matches of every group, in order of the groups' numbers."""
    found: dict[int, dict[int, Sequence]] = {}
    together = np.array([not _ENDS_APART.search(name) for name in words.names.words] + [False])
    for rank, trace in traces.items():
        for group, sequence in _sequences(trace, together).items():
            found.setdefault(group, {})[rank] = sequence
    return [_matched(group, sequences) for group, sequences in sorted(found.items())]


def _sequences(trace: RankTrace, together: npt.NDArray[np.bool_]) -> dict[int, Sequence]:
    rows = trace.rows
    own = np.flatnonzero((rows["kind"] == CODES["collective"]) & (rows["comm"] >= 0))
    own = own[np.lexsort((rows["start"][own], rows["comm"][own]))]
    groups, begin = np.unique(rows["comm"][own], return_index=True)
    content = rows["name"].astype(np.int64) << 40 | rows["bytes"]
    base = trace.base
    if not len(own):
        return {}
    return {
        group: Sequence(part, content[part], rows["end"][part] + base, together[rows["name"][part]])
        for group, part in zip(groups.tolist(), np.split(own, begin[1:]), strict=True)
    }


def _matched(group: int, sequences: dict[int, Sequence]) -> Matches:
    reference = max(sequences, key=lambda rank: (len(sequences[rank].rows), -rank))
    first = {reference: 0}
    for rank, sequence in sequences.items():
        if rank != reference and (shift := _shift(sequences[reference], sequence)) is not None:
            first[rank] = shift
    least = min(first.values())
    return Matches(group, sequences, {rank: shift - least for rank, shift in sorted(first.items())})


def _shift(reference: Sequence, other: Sequence) -> int | None:
    """Position in `reference` of the first element of `other`; None if they do not agree. Steps repeat, so several
    positions may agree. Then the one with the smallest differences of the clocks counts."""
    best: tuple[float, float] | None = None
    place = None
    n, m = len(reference.content), len(other.content)
    for shift in range(max(-m + 1, -_MOST_SHIFT), min(n, _MOST_SHIFT)):
        a, b = max(shift, 0), max(-shift, 0)
        length = min(n - a, m - b)
        if length * 2 < min(n, m):
            continue
        same = float((reference.content[a : a + length] == other.content[b : b + length]).mean())
        if same < _AGREE:
            continue
        apart = abs(float(np.median(reference.end[a : a + length] - other.end[b : b + length])))
        if best is None or (-same, apart) < best:
            best, place = (-same, apart), shift
    return place

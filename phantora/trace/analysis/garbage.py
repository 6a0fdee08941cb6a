"""Full collections of Python's garbage: which ranks stop for them, for how long, and whether they stop together.

The rows are of ``phantora/rank/patches/garbage.py``, with ``--garbage counted``.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from phantora.json_data import Ns
from phantora.trace.analysis.communicators import ranges
from phantora.trace.analysis.steps import Steps
from phantora.trace.analysis.units import duration
from phantora.trace.reader import Log
from phantora.wire.names import GARBAGE

REMEDY = (
    "gc.freeze() after set-up makes them shorter; gc.disable(), and gc.collect() every N steps, lets all ranks collect "
    "at once"
)


@dataclass(frozen=True, kw_only=True)
class Collections:
    """Full collections within steps."""

    ranks: list[int]
    """Ranks with any."""
    most: int
    """Collections of the rank with most."""
    longest: Ns
    steps: list[int]
    """Numbers of the steps with any."""
    together: bool
    """In each of these steps all ranks collect."""


def collections(log: Log, steps: Steps) -> Collections | None:
    """None without any."""
    words = log.words("name")
    if GARBAGE not in words:
        return None
    wanted, columns = words.index(GARBAGE), ("rank", "start", "end", "name")
    count: dict[int, int] = defaultdict(int)
    by_step: dict[int, set[int]] = defaultdict(set)
    longest = 0
    for batch in log.batches(columns, kinds=("annotation",), ranks=sorted(steps.of_rank)):
        own = batch["name"] == wanted
        for rank, start, end in zip(*(batch[c][own].tolist() for c in columns[:-1]), strict=True):
            step = next((s.number for s in steps.of_rank[rank] if s.start <= start < s.end), None)
            if step is None:
                continue
            count[rank] += 1
            by_step[step].add(rank)
            longest = max(longest, end - start)
    if not count:
        return None
    return Collections(
        ranks=sorted(count),
        most=max(count.values()),
        longest=longest,
        steps=sorted(by_step),
        together=all(len(own) == len(steps.of_rank) for own in by_step.values()),
    )


def sentence(found: Collections) -> str:
    """``2 a rank, 126 ms at most, in steps 3,7; not in the same steps of all ranks, so others wait``."""
    of = f"rank {found.ranks[0]}" if len(found.ranks) == 1 else "a rank"
    text = f"{found.most} on {of}, {duration(found.longest)} at most, in step{'s' * (len(found.steps) > 1)} "
    text += ranges(tuple(found.steps))
    return text if found.together else f"{text}; not in the same steps of all ranks, so others wait"

"""Iterations found by backward passes, of loops without an optimizer of torch: updates by hand, meta-learning.

Autograd runs a backward pass in a thread of its own while the main thread waits, so operators of another thread, with
none of the main thread between them, are one pass.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from phantora.trace.analysis.iterations import Iteration, Iterations
from phantora.trace.reader import Log

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_LEAST = 0.25  # of a rank's operators are of backward passes: else they are a part of other work
_ALIKE = 0.5  # of the median pass's operators: passes of fewer belong to the next (a small loss apart)
_BEGINNING = int(np.iinfo(np.int64).min)


def by_backward(log: Log, ranks: Iterable[int]) -> Iterations | None:
    """Iterations that end with a backward pass; None if a rank has none."""
    found: dict[int, list[Iteration]] = {}
    for rank in ranks:
        ends = _passes(log, rank)
        begins = [_BEGINNING, *(end + 1 for end in ends)]
        found[rank] = [
            Iteration(i + 1, f"backward pass {i + 1}", begin, end)
            for i, (begin, end) in enumerate(zip(begins, ends, strict=False))
        ]
    return Iterations("backward", found) if found and all(found.values()) else None


def _passes(log: Log, rank: int) -> list[int]:
    """Ends of a rank's backward passes, ns."""
    columns = ("start", "end", "stream")
    parts = [[batch[name] for name in columns] for batch in log.batches(columns, kinds=("operator",), ranks=(rank,))]
    if not parts:
        return []
    start, end, thread = (np.concatenate(part).astype(np.int64) for part in zip(*parts, strict=True))
    order = np.argsort(start, kind="stable")
    end, other = end[order], thread[order] != 0
    if other.mean() < _LEAST:
        return []
    first = np.flatnonzero(other & ~np.append(False, other[:-1]))
    last = np.flatnonzero(other & ~np.append(other[1:], False))
    size = last - first + 1
    return [int(end[a : b + 1].max()) for a, b in zip(first[_large(size)], last[_large(size)], strict=True)]


def _large(sizes: Ints) -> Mask:
    """The passes that end an iteration; half of all operators lie in passes of the median's size or more."""
    ordered = np.sort(sizes)
    median = ordered[int(np.searchsorted(2 * np.cumsum(ordered), ordered.sum()))]
    found: Mask = sizes >= _ALIKE * median
    return found

"""Where the program read a number that nobody has, as the rows of the log tell (docs/values.md)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phantora.trace.reader import Log

PREFIX = "assumed: "  # as in stub/tracer/assumptions.cpp


@dataclass(frozen=True)
class Assumption:
    """A value that a program read and that no simulation knows."""

    what: str
    """``nonzero finds 0 in 5000 elements at train.py:12``"""
    times: int
    """How often, over all ranks."""


def assumptions(log: Log) -> list[Assumption]:
    """The assumptions of a run, the most frequent first."""
    words = log.words("name")
    wanted = np.array([(word or "").startswith(PREFIX) for word in words], dtype=bool)
    if not wanted.any():
        return []
    counts = np.zeros(len(words), np.int64)
    for batch in log.batches(("name",)):
        codes = batch["name"]
        known = codes[(codes >= 0) & wanted[np.maximum(codes, 0)]]
        counts += np.bincount(known, minlength=len(words))
    found = [Assumption(words[i].removeprefix(PREFIX), int(counts[i])) for i in np.flatnonzero(counts)]
    return sorted(found, key=lambda a: (-a.times, a.what))

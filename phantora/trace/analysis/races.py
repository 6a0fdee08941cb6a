"""Accesses to memory that nothing orders, from the rows of a run with ``--check races``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phantora.trace.reader import Log

PREFIX = "race: "  # as in stub/tracer/races.cpp


@dataclass(frozen=True)
class Race:
    """Two accesses of one tensor of which neither comes after the other."""

    what: str
    """Both accesses with their operators and lines, the tensor, and what is missing between them."""
    ranks: int
    """On how many ranks."""


def races(log: Log) -> list[Race]:
    """The races of a run, those of most ranks first; empty for a run that was not checked."""
    words = log.words("name")
    wanted = np.array([(word or "").startswith(PREFIX) for word in words], dtype=bool)
    if not wanted.any():
        return []
    ranks: dict[int, set[int]] = {}
    for batch in log.batches(("name", "rank")):
        rows = np.flatnonzero((batch["name"] >= 0) & wanted[np.maximum(batch["name"], 0)])
        for name, rank in zip(batch["name"][rows].tolist(), batch["rank"][rows].tolist(), strict=True):
            ranks.setdefault(name, set()).add(rank)
    found = [Race(words[name].removeprefix(PREFIX), len(own)) for name, own in ranks.items()]
    return sorted(found, key=lambda race: (-race.ranks, race.what))

"""Spread of single steps: the trailer's ``spread``, from the samples of ``runs/samples.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from phantora.json_data import Ns

LOW, HIGH = 0.05, 0.95
MORE = (8, 64, 512, 4096)
"""Numbers of ranks for which the slowest is estimated."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Samples of a step of a real run."""

    samples: int
    median: Ns
    low: Ns
    """5 % of the samples are shorter."""
    high: Ns
    """5 % are longer."""
    longest: Ns
    waits: float | None
    """Share by which the mean step is longer since ranks wait for the slowest of them; None for a run of one rank."""
    slowest: dict[int, float]
    """By number of independent ranks: share by which the expected slowest takes longer than the mean. A step with one
    collective at its end is as much longer."""


def spread_of(trailer: Mapping[str, Any]) -> Spread | None:
    """None in logs without samples."""
    reported = trailer.get("spread", {})
    if "steps_ns" not in reported:
        return None
    times = np.asarray(reported["steps_ns"], np.float64)
    equal = np.asarray(reported.get("equal_ranks_ns", times), np.float64)
    low, median, high = np.quantile(times, (LOW, 0.5, HIGH))
    return Spread(
        samples=len(times),
        median=round(median),
        low=round(low),
        high=round(high),
        longest=round(times.max()),
        waits=float(times.mean() / equal.mean() - 1) if "equal_ranks_ns" in reported else None,
        slowest={ranks: expected_slowest(equal.tolist(), ranks) / float(equal.mean()) - 1 for ranks in MORE},
    )


def longer_with(trailer: Mapping[str, Any], copies: float) -> float:
    """Mean step of `copies` copies of the run, each of which waits for the slowest in every step, over the median one
    of one copy; 1 in logs without samples."""
    times = trailer.get("spread", {}).get("steps_ns")
    return expected_slowest(times, copies) / float(np.median(times)) if times else 1.0


def expected_slowest(times: Sequence[float], ranks: float) -> float:
    """Expected largest of `ranks` independent draws from `times`. It is at most the largest of `times`."""
    ordered = np.sort(np.asarray(times, np.float64))
    below = np.arange(len(ordered) + 1) / len(ordered)
    return float(ordered @ np.diff(below**ranks))

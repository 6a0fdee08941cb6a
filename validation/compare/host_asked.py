"""The host that a real step asks for, next to the measured one: how far scripts differ from a factor."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from validation.compare.bar_halves import HALVES, INSIDE
from validation.compare.runs import at_host

FOLLOWS = 0.6  # of a host's change, which the step must follow; else its time says little of the host
_FACTORS = np.geomspace(0.1, 20, 5000)


def asked(by_host: Mapping[str, float], factor: float, real: float) -> float | None:
    """The factor at which the step would be the real one, over the measured `factor`. `by_host`: s by factor, as
    predicted. None where the step hardly follows its host."""
    step = at_host(dict(by_host), factor)
    if (at_host(dict(by_host), 1.25 * factor) / step - 1) / 0.25 < FOLLOWS:
        return None
    steps = np.array([at_host(dict(by_host), each) for each in _FACTORS])
    return float(_FACTORS[np.argmin(np.abs(steps - real))]) / factor


def within(ratios: Sequence[float], spread: tuple[float, float]) -> float:
    """Share of `ratios` inside."""
    return sum(spread[0] <= ratio <= spread[1] for ratio in ratios) / len(ratios)


def judge_spread(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The middle nine tenths of a random half, and the share of the other half inside: means."""
    chance = random.Random(0)
    found = []
    for _ in range(HALVES):
        order = chance.sample(list(ratios), len(ratios))
        ours, others = order[: len(order) // 2], order[len(order) // 2 :]
        low, high = np.quantile(ours, ((1 - INSIDE) / 2, (1 + INSIDE) / 2)).tolist()
        found.append((low, high, within(others, (low, high))))
    low, high, inside = (statistics.mean(column) for column in zip(*found, strict=True))
    return low, high, inside

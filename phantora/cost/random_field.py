"""Reading a quantity off scattered members that resemble each other in several respects at once.

The quantity is a sum of random fields, a tier each. In a tier, members of one kind share a field that changes over so
many octaves, and members of different kinds know nothing of each other; a wide kind holds many members, a narrow one
few that are nearly equal. The expectation at a place (kriging) is a weighted sum of what the members have.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from phantora.cost import kriging
from phantora.cost.kriging import Floats

Ints = npt.NDArray[np.signedinteger[Any]]
Bools = npt.NDArray[np.bool_]

MEMBERS = 320  # that count: those that resemble the place most
ROWS = 32  # of their covariances at a time, which stay in the processor's cache


@dataclass(frozen=True)
class Tier:
    """Variance of a tier's field, and the octaves over which it changes, for each coordinate."""

    variance: float
    octaves: tuple[float, ...]


class Field:
    """Members: a row of coordinates each, and a kind for each of `tiers`. What no tier tells has variance `noise`."""

    def __init__(
        self, tiers: Sequence[Tier], noise: float, at: Sequence[Sequence[float]], kinds: Sequence[Sequence[Hashable]]
    ) -> None:
        self._tiers = tiers
        self._scales: dict[tuple[float, ...], list[int]] = {}
        for number, tier in enumerate(tiers):
            self._scales.setdefault(tier.octaves, []).append(number)
        self._noise = noise
        self._at = np.array(at, float).reshape(len(at), len(tiers[0].octaves))
        self._numbers: list[dict[Hashable, int]] = [{} for _ in tiers]
        self._kinds = np.array(
            [[self._numbers[t].setdefault(kind, len(self._numbers[t])) for t, kind in enumerate(row)] for row in kinds],
            int,
        ).reshape(len(kinds), len(tiers))

    def weights(self, at: Sequence[float], kinds: Sequence[Hashable]) -> tuple[Ints, Floats]:
        """The members that count at a place, and the weight of each; none if nothing resembles it."""
        if not len(self._at):
            return np.empty(0, int), np.empty(0)
        here = np.array([numbers.get(kind, -1) for numbers, kind in zip(self._numbers, kinds, strict=True)])
        alike = self._covariance(self._at.T - np.array(at, float)[:, None], here[:, None] == self._kinds.T)
        members = np.argsort(-alike, kind="stable")[:MEMBERS]
        members = members[alike[members] > 0.0]
        places, named = self._at[members].T, self._kinds[members].T
        between = np.empty((len(members), len(members)))
        for rows in (slice(start, start + ROWS) for start in range(0, len(members), ROWS)):
            away, same = places[:, rows, None] - places[:, None], named[:, rows, None] == named[:, None]
            between[rows] = self._covariance(away, same)
        return members, kriging.solve(between, alike[members], self._noise)

    def distance(self, at: Sequence[float], kind: Hashable, tier: int) -> float | None:
        """Octaves to the nearest member of the same kind in `tier`; None if there is none."""
        near = self._at[self._kinds[:, tier] == self._numbers[tier].get(kind, -1)]
        return float(np.sqrt(((near - np.array(at)) ** 2).sum(axis=1)).min()) if len(near) else None

    def _covariance(self, away: Floats, alike: Bools) -> Floats:
        """Of pairs: a row of octaves between the two for each coordinate, and for each tier whether they are of one
        kind."""
        squares = away * away
        total = np.zeros(away.shape[1:])
        for octaves, tiers in self._scales.items():
            x = np.zeros(total.shape)
            for square, width in zip(squares, octaves, strict=True):
                if width != inf:
                    x += square * width**-2.0
            np.sqrt(x, out=x)
            variance = np.zeros(total.shape)
            for tier in tiers:
                variance += alike[tier] * self._tiers[tier].variance
            total += variance * kriging.matern(x)
        return total

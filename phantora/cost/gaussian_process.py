"""A Gaussian process over scattered training points that resemble each other in several respects.

The quantity is a sum of Gaussian processes, a tier each. In a tier, training points of one kind share a process that
changes over a number of octaves, and those of different kinds are independent. A wide kind contains many training
points, a narrow one few that are nearly equal. The expectation at a place (kriging) is a sum over all training points:
their covariance with the place times a weight, which one system of equations gives for all places.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from phantora.cost import gp_cache, kriging
from phantora.cost.kriging import Floats

Ints = npt.NDArray[np.signedinteger[Any]]
Bools = npt.NDArray[np.bool_]

ROWS = 32  # of points' covariances at a time, which stay in the processor's cache
DIGITS = 9  # of coordinates and values by which two fields differ


@dataclass(frozen=True)
class Tier:
    """Variance of a tier's field, and the octaves over which it changes, for each coordinate."""

    variance: float
    octaves: tuple[float, ...]


class GaussianProcess:
    """Training points: a row of coordinates, a kind for each of `tiers`, and a value each.

    `noise` is the variance that no tier explains."""

    def __init__(
        self,
        tiers: Sequence[Tier],
        noise: float,
        at: Sequence[Sequence[float]],
        kinds: Sequence[Sequence[Hashable]],
        values: Sequence[float],
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
            np.int32,
        ).reshape(len(kinds), len(tiers))
        self._values = np.array(values, float)
        self._weights: Floats | None = None
        self._sorted: list[Ints] = []  # by tier: points by kind, and where each kind begins
        self._begins: list[Ints] = []
        self._points: dict[tuple[int, int], tuple[Floats, Floats, list[int], Floats]] = {}  # by tier and kind

    def expectation(self, at: Sequence[float], kinds: Sequence[Hashable]) -> float:
        """The value at a place; 0 if nothing resembles it."""
        total = 0.0
        for tier, kind in enumerate(kinds):
            number = self._numbers[tier].get(kind)
            if number is None:
                continue
            if (tier, number) not in self._points:
                self._points[tier, number] = self._of_kind(tier, number)
            places, counts, finite, octaves = self._points[tier, number]
            away = places - (np.array([at[i] for i in finite]) / octaves)[:, None]
            total += float(kriging.matern(np.sqrt(np.einsum("ij,ij->j", away, away))) @ counts)
        return total

    def _of_kind(self, tier: int, number: int) -> tuple[Floats, Floats, list[int], Floats]:
        """Training points of one kind: coordinates (a row each) in ranges of the tier, and their weights; the numbers
        of the coordinates that the tier has, and its ranges."""
        weights = self.solve()
        points = self._sorted[tier][self._begins[tier][number] : self._begins[tier][number + 1]]
        finite = [i for i, width in enumerate(self._tiers[tier].octaves) if width != inf]
        octaves = np.array([self._tiers[tier].octaves[i] for i in finite], float)
        places = np.ascontiguousarray((self._at[points][:, finite] / octaves).T)
        return places, weights[points] * self._tiers[tier].variance, finite, octaves

    def solve(self) -> Floats:
        """Weights of the training points' covariances with a place; computed once."""
        if self._weights is None:
            self._weights = gp_cache.find(self._name(), self._solve)
            kinds = self._kinds.T
            self._sorted = [np.argsort(row, kind="stable") for row in kinds]
            self._begins = [
                np.searchsorted(row[order], np.arange(len(numbers) + 1))
                for row, order, numbers in zip(kinds, self._sorted, self._numbers, strict=True)
            ]
        return self._weights

    def _solve(self) -> Floats:
        places, named = self._at.T, self._kinds.T
        between = np.empty((len(self._at), len(self._at)))
        for rows in (slice(start, start + ROWS) for start in range(0, len(between), ROWS)):
            away, same = places[:, rows, None] - places[:, None], named[:, rows, None] == named[:, None]
            between[rows] = self._covariance(away, same)
        return kriging.solve(between, self._values, self._noise)

    def _name(self) -> str:
        """Name by the contents, equal for equal processes on any machine."""
        digest = sha256(repr((self._tiers, self._noise)).encode())
        for numbers in (np.round(self._at, DIGITS), self._kinds, np.round(self._values, DIGITS)):
            digest.update(np.ascontiguousarray(numbers + 0).tobytes())
        return digest.hexdigest()[:32]

    def distance(self, at: Sequence[float], kind: Hashable, tier: int) -> float | None:
        """Octaves to the nearest member of the same kind in `tier`; None if there is none."""
        near = self._at[self._kinds[:, tier] == self._numbers[tier].get(kind, -1)]
        return float(np.sqrt(((near - np.array(at)) ** 2).sum(axis=1)).min()) if len(near) else None

    def _covariance(self, away: Floats, identical: Bools) -> Floats:
        """Covariances of pairs: a row of octaves between the two for each coordinate, and for each tier whether their
        kind is equal."""
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
                variance += identical[tier] * self._tiers[tier].variance
            total += variance * kriging.matern(x)
        return total

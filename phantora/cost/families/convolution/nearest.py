"""Predicting a pass of a convolution from the measured passes that are most like it in all that kernels depend on.

The ratio of measured time to that of `tiles` is a Gaussian process over the coordinates below: extents, formats,
layouts and conditions on which cuDNN takes other kernels. The nearest training points give its expectation and its
variance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, log, log2, sqrt

import numpy as np

from phantora.cost import kriging
from phantora.cost.families.convolution.passes import Pass, run_passes
from phantora.cost.families.convolution.ranges import FITTED
from phantora.cost.families.convolution.tiled_transforms import is_tiled, may_tile
from phantora.cost.families.convolution.tiles import pass_ns
from phantora.cost.kriging import Floats
from phantora.cost.machine import Machine
from phantora.cost.table import Entry
from phantora.cost.timing import kernel_ns
from phantora.cost.training_points import Families, TrainingPoints

NEAREST = 64  # points that count
# Expected where nothing is near, as in tables without volumes. A fitted mean of 3.5 was as good with all random ones,
# and three times too slow for volumes without them (convolutions_random.py 1 from the H100's usual convolutions alone).
MEAN = 0.4
CLOSE = 1e-12


@dataclass(frozen=True)
class Neighbour:
    """ns, and the standard deviation of its logarithm."""

    ns: float
    deviation: float


def coordinates(machine: Machine, work: Pass) -> tuple[list[float], float]:
    """Coordinates of a pass (in the order of `ranges.COORDINATES`), and its ns by tiles."""
    ns, one_by_one = pass_ns(machine, work)
    channels, filters = work.channels // work.groups, work.filters // work.groups
    odd_width = work.groups > 1 and (filters > 1 if work.depthwise else channels & (channels - 1) > 0)
    dilated = work.dilation > 1 and work.taps > 1
    return [
        log2(work.batch * work.outside),
        log2(work.batch),
        log2(channels),
        log2(filters),
        log2(work.groups),
        log2(work.taps),
        log2(work.stride),
        (1.0 + (work.stride > 1)) * dilated,
        float(work.last),
        float(work.arithmetic == "half"),
        float(work.arithmetic == "float32"),
        float(work.dtype == "float16"),
        float(work.dimensions == 3),
        float(work.dimensions == 1),
        float(work.plain),
        _odd(channels),
        _odd(filters),
        one_by_one,
        log2(ns),
        float(work.groups > 1),
        float(work.depthwise),
        float(work.depthwise and not work.last),
        float(work.taps == 1),
        float(odd_width),
    ], ns


def _odd(channels: int) -> float:
    """Rows that are no multiples of 16 or 8 bytes in 16-bit formats."""
    return 0.0 if channels % 8 == 0 else 0.5 if channels % 4 == 0 else 1.0


def family_of(work: Pass) -> str:
    """The family of a pass: by direction, and by tensor cores or none."""
    return f"{work.which} float32" if work.arithmetic == "float32" else work.which


def points_of(machine: Machine, entries: Iterable[Entry]) -> Families:
    """The passes of measured `entries`, those of a family together, less transforms of tiles."""
    found: dict[str, list[tuple[list[float], float]]] = {}
    for entry in entries:
        for work, ran in run_passes(entry):
            ns = sum(kernel_ns(kernel, "convolution") for kernel in ran)
            if ns <= 0.0 or (may_tile(work) and is_tiled(kernel.name for kernel in ran)):
                continue
            place, analytic = coordinates(machine, work)
            found.setdefault(family_of(work), []).append((place, log(ns / analytic)))
    return {
        which: TrainingPoints(np.array([place for place, _ in points]), np.array([value for _, value in points]))
        for which, points in found.items()
    }


class Nearest:
    """Durations of passes of one direction from measured ones."""

    def __init__(self, machine: Machine, which: str, points: TrainingPoints) -> None:
        self._machine = machine
        fitted = FITTED[which]
        self._ranges = [np.array(row) for row in (fitted.near, fitted.far)]
        self._variances, self._noise = fitted.variances, fitted.noise
        self._at = [points.at * row for row in self._ranges]  # in ranges of either field
        self._squares = [(places * places).sum(axis=1) for places in self._at]
        self._values = points.ratio

    def read(self, work: Pass) -> Neighbour:
        """The predicted neighbour of `work`."""
        place, analytic = coordinates(self._machine, work)
        here = [np.array(place) * row for row in self._ranges]
        away = [
            squares + point @ point - 2.0 * (places @ point)
            for places, squares, point in zip(self._at, self._squares, here, strict=True)
        ]
        total = away[0] + away[1]
        near = np.argpartition(total, NEAREST)[:NEAREST] if len(total) > NEAREST else np.arange(len(total))
        near.sort()
        identical = self._covariance([squares[near] for squares in away])
        between = self._covariance(
            [
                squares[near][:, None] + squares[near][None] - 2.0 * (places[near] @ places[near].T)
                for places, squares in zip(self._at, self._squares, strict=True)
            ]
        )
        right = np.stack([self._values[near] - MEAN, identical], axis=1)
        counts = kriging.solve(between, right, self._noise)
        expected = MEAN + float(identical @ counts[:, 0])
        variance = sum(self._variances) + self._noise - float(identical @ counts[:, 1])
        return Neighbour(analytic * exp(expected), sqrt(max(variance, self._noise)))

    def _covariance(self, squares: Sequence[Floats]) -> Floats:
        total = np.zeros(squares[0].shape)
        for variance, away in zip(self._variances, squares, strict=True):
            total += variance * kriging.matern(np.sqrt(np.maximum(away, CLOSE)))
        return total

"""Predicting convolutions that were not measured: off fields of their own geometry where it was measured, else from
those that are most identical."""

from __future__ import annotations

from collections.abc import Iterator
from math import expm1, sqrt

from phantora.cost.families.convolution.nearest import Nearest, Neighbour, points_of
from phantora.cost.families.convolution.passes import Pass, passes_of
from phantora.cost.families.convolution.prediction import Convolutions
from phantora.cost.families.convolution.tiles import looped, pass_ns
from phantora.cost.families.convolution.transforms import DEVIATION, transformed, transforms_ns
from phantora.cost.family import Prediction
from phantora.cost.gaussian_process import GaussianProcess
from phantora.cost.machine import Machine
from phantora.cost.table import Table
from phantora.cost.training_points import Families, PointsCache
from phantora.cost.types import OperatorSignature

OPERATORS = (
    "_conv_depthwise2d",
    "conv_depthwise3d",
    "convolution_backward",
    "cudnn_convolution",
    "cudnn_convolution_transpose",
)
"""Operators that are predicted from others: a transposed convolution is a gradient of a plain one."""
# Octaves to the nearest of the same geometry: up to the first its fields are more exact than what is most identical
# (popular ones, hidden: 1.5 to 7.3 % in the median, not 5.7 to 6.5), from the second on less (41 instead of 10 %).
CLOSE, FAR = 1.0, 2.0
LOOP_DEVIATION = 0.1  # of 56 measured loops over large filters
DEVIATIONS = 1.1  # of a neighbour: nine of ten of the random draws lie within, since a few lie far outside


class Predicted:
    """Predicts the operators called `name` from those that `table` holds, measured on the GPU of `machine`."""

    def __init__(self, machine: Machine, table: Table, name: str, cache: PointsCache | None = None) -> None:
        self._machine = machine
        self._table = table
        self._cache = cache
        self._field = Convolutions(machine, table.of_operator(name))
        self._families: Families | None = None
        self._nearest: dict[str, Nearest | None] = {}

    def read(self, signature: OperatorSignature, compute: str) -> Prediction | None:
        """None if nothing comparable was measured."""
        passes = passes_of(signature, compute)
        modelled = any(transformed(work) or looped(self._machine, work) for work in passes)
        near = None if modelled else self._field.read(signature, compute)
        if near is not None and near.distance <= CLOSE:
            return near
        predicted = [self._neighbour(work) for work in passes]
        found = [each for each in predicted if each is not None]
        if not found or len(found) < len(predicted):
            return near
        ns = sum(neighbour.ns for neighbour in found)
        error = sqrt(sum((neighbour.ns * expm1(DEVIATIONS * neighbour.deviation)) ** 2 for neighbour in found)) / ns
        if near is None:
            return Prediction(ns, 0.0, error)
        identical = min(1.0, (near.distance - CLOSE) / (FAR - CLOSE))
        return Prediction(ns**identical * near.ns ** (1.0 - identical), near.distance, error)

    def processes(self) -> Iterator[GaussianProcess]:
        """Processes of measured geometries."""
        return self._field.processes()

    def _neighbour(self, work: Pass) -> Neighbour | None:
        if transformed(work):
            return Neighbour(transforms_ns(self._machine, work), DEVIATION)
        if looped(self._machine, work):
            return Neighbour(pass_ns(self._machine, work)[0], LOOP_DEVIATION)
        if work.which not in self._nearest:
            if self._families is None:
                cache = self._cache
                self._families = cache.find(("passes", *OPERATORS), self._points) if cache else self._points()
            points = self._families.get(work.which)
            self._nearest[work.which] = Nearest(self._machine, work.which, points) if points is not None else None
        nearest = self._nearest[work.which]
        return nearest.read(work) if nearest is not None else None

    def _points(self) -> Families:
        entries = (entry for name in OPERATORS for entry in self._table.of_operator(name))
        return points_of(self._machine, entries)

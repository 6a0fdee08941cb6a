"""Predicting convolutions that were not measured: off fields of their own geometry where it was measured, else from
those that are most identical."""

from __future__ import annotations

from collections.abc import Iterator
from math import expm1, hypot, log, sqrt

from phantora.cost.families.convolution.nearest import Nearest, Neighbour, family_of, points_of
from phantora.cost.families.convolution.passes import Pass, passes_of
from phantora.cost.families.convolution.prediction import Convolutions
from phantora.cost.families.convolution.tiled_transforms import DEVIATION as TILED_DEVIATION
from phantora.cost.families.convolution.tiled_transforms import Choice, choices, may_tile, tiled_ns
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
CHOICES = "tiled"  # the family of cuDNN's choices
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
        self._choice: Choice | None = None

    def read(self, signature: OperatorSignature, compute: str) -> Prediction | None:
        """None if nothing comparable was measured."""
        passes = passes_of(signature, compute)
        modelled = any(transformed(work) or looped(self._machine, work) or may_tile(work) for work in passes)
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
        nearest = self._nearest_of(work)
        near = nearest.read(work) if nearest is not None else None
        return self._tiled(work, near) if may_tile(work) else near

    def _tiled(self, work: Pass, near: Neighbour | None) -> Neighbour | None:
        """`work` by transforms of tiles, or as `near` if cuDNN takes none. The error has the chance of the other."""
        if self._choice is None:
            points = self._measured().get(CHOICES)
            if points is None:
                return near
            self._choice = Choice(self._machine, points)
        ns, chance = tiled_ns(self._machine, work), self._choice.tiled(work)
        if near is None:
            return Neighbour(ns, TILED_DEVIATION)
        taken = Neighbour(ns, TILED_DEVIATION) if chance > 0.5 else near
        return Neighbour(taken.ns, hypot(taken.deviation, sqrt(chance * (1.0 - chance)) * log(ns / near.ns)))

    def _nearest_of(self, work: Pass) -> Nearest | None:
        family = family_of(work)
        if family not in self._nearest:
            points = self._measured().get(family)
            self._nearest[family] = Nearest(self._machine, work.which, points) if points is not None else None
        return self._nearest[family]

    def _measured(self) -> Families:
        if self._families is None:
            cache = self._cache
            self._families = cache.find(("passes", *OPERATORS), self._points) if cache else self._points()
        return self._families

    def _points(self) -> Families:
        entries = [entry for name in OPERATORS for entry in self._table.of_operator(name)]
        families, tiled = points_of(self._machine, entries), choices(self._machine, entries)
        return families if tiled is None else {**families, CHOICES: tiled}

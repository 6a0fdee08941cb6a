"""Predicting convolutions that were not measured: off fields of their own geometry where it was measured, else from
those that are most alike."""

from __future__ import annotations

from collections.abc import Iterator
from math import expm1, sqrt

from phantora.cost.families.convolution.field import Convolutions
from phantora.cost.families.convolution.nearest import Guess, Nearest, members_of
from phantora.cost.families.convolution.passes import Pass, passes_of
from phantora.cost.family import Prediction
from phantora.cost.machine import Machine
from phantora.cost.members import Families, Kept
from phantora.cost.random_field import Field
from phantora.cost.table import Table
from phantora.cost.types import OperatorSignature

OPERATORS = (
    "_conv_depthwise2d", "conv_depthwise3d", "convolution_backward", "cudnn_convolution", "cudnn_convolution_transpose",
)  # fmt: skip
"""What is predicted from others: a transposed convolution is a gradient of a plain one."""
# Octaves to the nearest of the same geometry: up to the first its fields are more exact than what is most alike
# (popular ones, hidden: 1.5 to 7.3 % in the median, not 5.7 to 6.5), from the second on less (41 instead of 10 %).
CLOSE, FAR = 1.0, 2.0
DEVIATIONS = 1.1  # of a guess: nine of ten of the random draws lie within, since a few lie far outside


class Predicted:
    """Predicts the operators called `name` from those that `table` holds, measured on the GPU of `machine`."""

    def __init__(self, machine: Machine, table: Table, name: str, kept: Kept | None = None) -> None:
        self._machine = machine
        self._table = table
        self._kept = kept
        self._field = Convolutions(machine, table.of_operator(name))
        self._families: Families | None = None
        self._nearest: dict[str, Nearest | None] = {}

    def read(self, signature: OperatorSignature, compute: str) -> Prediction | None:
        """None if nothing comparable was measured."""
        near = self._field.read(signature, compute)
        if near is not None and near.distance <= CLOSE:
            return near
        guesses = [self._guess(work) for work in passes_of(signature, compute)]
        found = [each for each in guesses if each is not None]
        if not found or len(found) < len(guesses):
            return near
        ns = sum(guess.ns for guess in found)
        error = sqrt(sum((guess.ns * expm1(DEVIATIONS * guess.deviation)) ** 2 for guess in found)) / ns
        if near is None:
            return Prediction(ns, 0.0, error)
        alike = min(1.0, (near.distance - CLOSE) / (FAR - CLOSE))
        return Prediction(ns**alike * near.ns ** (1.0 - alike), near.distance, error)

    def fields(self) -> Iterator[Field]:
        """Those of measured geometries."""
        return self._field.fields()

    def _guess(self, work: Pass) -> Guess | None:
        if work.which not in self._nearest:
            if self._families is None:
                kept = self._kept
                self._families = kept.find(("passes", *OPERATORS), self._members) if kept else self._members()
            members = self._families.get(work.which)
            self._nearest[work.which] = Nearest(self._machine, work.which, members) if members is not None else None
        nearest = self._nearest[work.which]
        return nearest.read(work) if nearest is not None else None

    def _members(self) -> Families:
        entries = (entry for name in OPERATORS for entry in self._table.of_operator(name))
        return members_of(self._machine, entries)

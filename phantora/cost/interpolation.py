"""Predicting an operator from measured ones near it.

The analytic model is right in how times change with size, and wrong by a factor that changes slowly. So
the logarithm of measured over analytic time is interpolated between the nearest training points of the operator's
family of places, nearer ones counting more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import exp, inf, log
from typing import NamedTuple

import numpy as np

from phantora.cost import kriging
from phantora.cost.coordinates import Place, bfloat16_for_float16, kernel_stem
from phantora.cost.families import base_name, class_of, family_of, reduction
from phantora.cost.family import Predictor
from phantora.cost.kriging import Floats
from phantora.cost.machine import Machine
from phantora.cost.table import Entry, Table
from phantora.cost.timing import kernel_ns, launches_of, own_kernels
from phantora.cost.training_points import Families, PointsCache, TrainingPoints
from phantora.cost.types import KernelLaunch, OperatorSignature

NEAREST = 24  # points that count
# Octaves. Beyond, the logarithm fades as 1 / distance. Of 1,036 elementwise operators of the H200's table, read from
# members that are six octaves smaller or more, the median error falls from 14 % to 6 % (reductions: from 32 to 25 %).
REACH = 3.0
OTHER_DTYPE = 1.0  # octaves by which the same operator of the other 16-bit type counts as further away
NEAR = 0.5  # octaves: a single neighbour so near is enough
_SOFTENING = 0.05  # octaves within which neighbours have equal weight
_SCALE = 3.0  # octaves over which logarithms lose sight of each other
_NOISE = 0.1  # of a member, relative to how far logarithms spread


class Near(NamedTuple):
    """Measured over analytic time, the octaves to the nearest neighbour, and the relative error where it is known."""

    ratio: float
    distance: float
    error: float | None = None


Model = Callable[[OperatorSignature, str, tuple[KernelLaunch, ...]], float]
"""The analytic time in ns of an operator with its compute mode and kernels."""


def places(signature: OperatorSignature, compute: str = "", kernels: Sequence[KernelLaunch] = ()) -> tuple[Place, ...]:
    """The places of `signature`, from its narrowest family to the widest; none for what has no sizes to
    compare. `kernels` are those that it launches, their names mangled or not, if they are known."""
    name = base_name(signature.name)
    family = family_of(name)
    found = family.places(signature, name, compute, max(1, len(kernels)))
    if not found or not kernels or not family.depends_on_kernels:
        return found
    first, cut = found[0], reduction.cut_of(signature, kernels)
    if cut is not None:
        return reduction.places_of_cut(signature, cut, kernels[0].block)
    stems = " ".join(dict.fromkeys(kernel_stem(kernel.name) for kernel in kernels))
    blocks = " ".join(dict.fromkeys(str(kernel.block) for kernel in kernels))
    return (Place(f"{first.family} {stems} {blocks}", first.at), Place(f"{first.family} {stems}", first.at), *found)


class Neighbours:
    """The entries of a table as families, by the analytic model of the table's own GPU."""

    def __init__(self, table: Table, model: Model, machine: Machine, cache: PointsCache | None = None) -> None:
        self._table = table
        self._model = model
        self._machine = machine
        self._cache = cache
        self._predictors: dict[str, Predictor] = {}  # by operator
        self._families: dict[str, Families] = {}  # by operator

    def ratio(self, signature: OperatorSignature, compute: str, kernels: Sequence[KernelLaunch]) -> Near | None:
        """Measured over analytic time, from the neighbours of `signature`; None without neighbours."""
        name = base_name(signature.name)
        family = family_of(name)
        if family.predictor is not None:
            if name not in self._predictors:
                self._predictors[name] = family.predictor(self._machine, self._table, name, self._cache)
            found = self._predictors[name].read(signature, compute)
            if found is None:
                return None
            return Near(found.ns / self._model(signature, compute, ()), found.distance, found.error)
        launched = [kernel for kernel in kernels if not kernel.library]
        families = self._of(name)
        own = _nearest(families, places(signature, compute, launched))
        twin = bfloat16_for_float16(signature)
        if twin is None or (own is not None and own[1] <= OTHER_DTYPE):
            return own
        other = _nearest(families, places(twin, compute, launched))
        return other if own is None or (other is not None and other[1] + OTHER_DTYPE < own[1]) else own

    def _of(self, name: str) -> Families:
        if name not in self._families:
            together = family_of(name).together
            names = together if name in together else (name,)

            def make() -> Families:
                return points_of((entry for other in names for entry in self._table.of_operator(other)), self._model)

            found = self._cache.find(names, make) if self._cache else make()
            self._families.update(dict.fromkeys(names, found))
        return self._families[name]


def _nearest(families: Families, found: Sequence[Place]) -> Near | None:
    """The ratio in the narrowest of the families within reach, else in that with the nearest member."""
    outside: Near | None = None
    for where in found:
        family = families.get(where.family)
        if family is None or family.at.shape[1] != len(where.at):
            continue
        predicted, distance = _read(family, np.array(where.at))
        enough = len(family.ratio) > 1 or distance <= NEAR
        if distance <= REACH and (enough or where == found[-1]):
            return Near(exp(predicted), distance)
        if outside is None or distance < outside[1]:
            outside = Near(exp(predicted), distance)
    return outside


def points_of(entries: Iterable[Entry], model: Model) -> Families:
    """The families that `entries` form."""
    points: dict[str, list[tuple[Place, float]]] = {}
    for entry in entries:
        entry_class = class_of(base_name(entry.parsed.name))
        kernels = own_kernels(entry)
        measured = sum(kernel_ns(kernel, entry_class) for kernel in kernels)
        for launched in _known(entry.parsed, launches_of(kernels)):
            found = places(entry.parsed, entry.compute, launched) if kernels else ()
            analytic = model(entry.parsed, entry.compute, launched) if found else 0.0
            if measured > 0 and analytic > 0:
                for where in found:
                    points.setdefault(where.family, []).append((where, log(measured / analytic)))
    return {name: _points(found) for name, found in points.items()}


def _known(signature: OperatorSignature, launched: tuple[KernelLaunch, ...]) -> list[tuple[KernelLaunch, ...]]:
    """Kernels that may be known for an operator. Reductions with a known cut have another model."""
    return [launched] if reduction.cut_of(signature, launched) is None else [launched, ()]


def _points(found: list[tuple[Place, float]]) -> TrainingPoints:
    width = len(found[0][0].at)
    found = [(where, ratio) for where, ratio in found if len(where.at) == width]
    return TrainingPoints(np.array([where.at for where, _ in found], float), np.array([ratio for _, ratio in found]))


def _read(points: TrainingPoints, at: Floats) -> tuple[float, float]:
    """The logarithm at `at`, and the distance of the nearest training point.

    Logarithms are a Gaussian process around a mean in which near training points count more."""
    away = points.at - at
    distance = np.sqrt((away * away).sum(axis=1))
    nearest = np.argsort(distance, kind="stable")[:NEAREST]
    if not len(nearest):
        return 0.0, inf
    places, ratio, near = points.at[nearest], points.ratio[nearest], distance[nearest]
    weight = (near + _SOFTENING) ** -2.0
    mean = float(weight @ ratio / weight.sum())
    if near[0] > REACH:
        return mean * REACH / float(near[0]), float(near[0])
    between = kriging.matern(np.sqrt(((places[:, None] - places[None]) ** 2).sum(axis=2)) / _SCALE)
    solved = kriging.solve(between, ratio - mean, _NOISE**2)
    return mean + float(kriging.matern(near / _SCALE) @ solved), float(near[0])

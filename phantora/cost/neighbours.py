"""Predicting an operator from measured neighbours.

The analytic model is right in how times change with size, and wrong by a factor that changes slowly. So
the logarithm of measured over modelled time is interpolated between the nearest members of the operator's
family, nearer ones counting more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, inf, log

import numpy as np
import numpy.typing as npt

from phantora.cost import convolution, reduction
from phantora.cost.catalogue import base_name, classify
from phantora.cost.convolution_field import Convolutions, Timed, case_of
from phantora.cost.features import Place, bfloat16_for_float16, places
from phantora.cost.machine import Machine
from phantora.cost.table import Entry, Table, TimedKernel
from phantora.cost.transfer import COLD_CLASSES
from phantora.cost.types import KernelLaunch, OperatorSignature

NEAREST = 24  # members that count
REACH = 3.0  # octaves: beyond, the mean of the nearest holds
OTHER_DTYPE = 1.0  # octaves by which the same operator of the other 16-bit type counts as further away
NEAR = 0.5  # octaves: a single neighbour so near is enough
_SOFTENING = 0.05  # octaves within which neighbours count alike in the mean
_SCALE = 3.0  # octaves over which logarithms lose sight of each other
_NOISE = 0.1  # of a member, relative to how far logarithms spread

# cuDNN launches this kernel before the one ahead of it has ended, and it waits for that one: in the traces of two
# ResNets it lasted up to 28 us, and ended 2.9 to 3.3 us after the other.
_EARLY, EARLY_NS = "init_device_workspace_kernel", 3100.0

Floats = npt.NDArray[np.float64]
Model = Callable[[OperatorSignature, str, tuple[KernelLaunch, ...]], float]
"""The analytic time in ns of an operator with its compute mode and kernels."""


def kernel_ns(kernel: TimedKernel, cls: str) -> float:
    """The time of a measured kernel as it runs in a step."""
    ns = float(kernel.cold) if cls in COLD_CLASSES else (kernel.cold + kernel.warm) / 2.0
    return min(ns, EARLY_NS) if _EARLY in kernel.name else ns


def own_kernels(entry: Entry) -> list[TimedKernel]:
    """The kernels proper: copies and memsets of an operator are recorded, and priced, on their own."""
    return [kernel for kernel in entry.kernels if kernel.kind == "kernel"]


@dataclass(frozen=True)
class Family:
    """Places (a row each) and logarithms of measured over modelled time."""

    at: Floats
    ratio: Floats


class Neighbours:
    """The entries of a table as families, modelled by the analytic model of the table's own GPU."""

    def __init__(self, table: Table, model: Model, machine: Machine) -> None:
        self._table = table
        self._model = model
        self._machine = machine
        self._convolutions: dict[str, Convolutions] = {}  # by operator
        self._families: dict[str, dict[str, Family]] = {}  # by operator

    def ratio(
        self, signature: OperatorSignature, compute: str, kernels: Sequence[KernelLaunch]
    ) -> tuple[float, float] | None:
        """Measured over modelled time at the place of `signature`, and the distance in octaves of the
        nearest neighbour; None without neighbours."""
        if convolution.matches(base_name(signature.name)):
            return self._convolution(signature, compute)
        launched = [kernel for kernel in kernels if not kernel.library]
        families = self._of(base_name(signature.name))
        own = _nearest(families, places(signature, compute, launched))
        twin = bfloat16_for_float16(signature)
        if twin is None or (own is not None and own[1] <= OTHER_DTYPE):
            return own
        other = _nearest(families, places(twin, compute, launched))
        return other if own is None or (other is not None and other[1] + OTHER_DTYPE < own[1]) else own

    def _convolution(self, signature: OperatorSignature, compute: str) -> tuple[float, float] | None:
        """The same of a convolution, or of several gradients one after the other."""
        name = base_name(signature.name)
        if name not in self._convolutions:
            self._convolutions[name] = Convolutions(self._machine, timed_convolutions(self._table.of_operator(name)))
        cases = [case_of(part, compute) for part in convolution.gradients(signature)]
        found = [self._convolutions[name].read(case) for case in cases if case is not None]
        near = [each for each in found if each is not None]
        if not near or len(near) < len(cases):
            return None
        return sum(ns for ns, _ in near) / self._model(signature, compute, ()), max(distance for _, distance in near)

    def _of(self, name: str) -> dict[str, Family]:
        if name not in self._families:
            names = _SAME_PRODUCTS if name in _SAME_PRODUCTS else (name,)
            entries = [entry for other in names for entry in self._table.of_operator(other)]
            self._families.update(dict.fromkeys(names, families_of(entries, self._model)))
        return self._families[name]


_SAME_PRODUCTS = ("mm", "addmm")


def _nearest(families: dict[str, Family], found: Sequence[Place]) -> tuple[float, float] | None:
    """The ratio in the narrowest of the families within reach, else in that with the nearest member."""
    outside: tuple[float, float] | None = None
    for where in found:
        family = families.get(where.family)
        if family is None or family.at.shape[1] != len(where.at):
            continue
        predicted, distance = _read(family, np.array(where.at))
        enough = len(family.ratio) > 1 or distance <= NEAR
        if distance <= REACH and (enough or where == found[-1]):
            return exp(predicted), distance
        if outside is None or distance < outside[1]:
            outside = exp(predicted), distance
    return outside


def families_of(entries: Iterable[Entry], model: Model) -> dict[str, Family]:
    """The families that `entries` form."""
    members: dict[str, list[tuple[Place, float]]] = {}
    for entry in entries:
        entry_class, _ = classify(base_name(entry.parsed.name))
        kernels = own_kernels(entry)
        measured = sum(kernel_ns(kernel, entry_class) for kernel in kernels)
        for launched in _known(entry.parsed, launches_of(kernels)):
            found = places(entry.parsed, entry.compute, launched) if kernels else ()
            modelled = model(entry.parsed, entry.compute, launched) if found else 0.0
            if measured > 0 and modelled > 0:
                for where in found:
                    members.setdefault(where.family, []).append((where, log(measured / modelled)))
    return {name: _family(found) for name, found in members.items()}


def _known(signature: OperatorSignature, launched: tuple[KernelLaunch, ...]) -> list[tuple[KernelLaunch, ...]]:
    """What may be known of an operator's kernels. The model of a reduction whose cut is known is another."""
    return [launched] if reduction.cut_of(signature, launched) is None else [launched, ()]


def timed_convolutions(entries: Iterable[Entry]) -> Iterator[Timed]:
    """What `entries` tell of convolutions, gradients apart."""
    for entry in entries:
        kernels, parts = own_kernels(entry), convolution.gradients(entry.parsed)
        for part, ran in zip(parts, convolution.by_gradient(kernels) if len(parts) > 1 else (kernels,), strict=True):
            case = case_of(part, entry.compute)
            layout = sum(kernel_ns(kernel, "convolution") for kernel in ran if convolution.changes_layout(kernel))
            product = sum(kernel_ns(kernel, "convolution") for kernel in ran) - layout
            if case is not None and product > 0.0:
                yield Timed(case, product, layout)


def launches_of(kernels: Sequence[TimedKernel]) -> tuple[KernelLaunch, ...]:
    return tuple(KernelLaunch(kernel.name, kernel.grid, kernel.block) for kernel in kernels)


def _family(members: list[tuple[Place, float]]) -> Family:
    width = len(members[0][0].at)
    members = [(where, ratio) for where, ratio in members if len(where.at) == width]
    return Family(np.array([where.at for where, _ in members], float), np.array([ratio for _, ratio in members]))


def _read(family: Family, at: Floats) -> tuple[float, float]:
    """The logarithm at `at`, and the distance of the nearest member.

    Kriging: around a mean in which near members count more, logarithms are a random field whose
    correlation is Matern's of order 3/2 (once differentiable), and `at` gets its expectation.
    """
    away = family.at - at
    distance = np.sqrt((away * away).sum(axis=1))
    nearest = np.argsort(distance, kind="stable")[:NEAREST]
    if not len(nearest):
        return 0.0, inf
    members, ratio, near = family.at[nearest], family.ratio[nearest], distance[nearest]
    weight = (near + _SOFTENING) ** -2.0
    mean = float(weight @ ratio / weight.sum())
    if near[0] > REACH:
        return mean, float(near[0])
    between = np.sqrt(((members[:, None] - members[None]) ** 2).sum(axis=2))
    noisy = _correlation(between) + _NOISE**2 * np.eye(len(nearest))
    return mean + float(_correlation(near) @ np.linalg.solve(noisy, ratio - mean)), float(near[0])


def _correlation(octaves: Floats) -> Floats:
    x = octaves / _SCALE
    return (1.0 + x) * np.exp(-x)

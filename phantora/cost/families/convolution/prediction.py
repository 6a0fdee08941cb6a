"""Predicting convolutions from measured ones.

cuDNN chooses among dozens of kernels, no stub sees which, and the choice goes by what is equal rather than by what is
near: the same channels, the same image, the same layout. So the product, the choice between converting tensors (to
channels-last for tensor cores, to channels-first without) or not, and the conversions are each read off a Gaussian
process (phantora.cost.gaussian_process) of the measured ones.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, inf, log

from phantora.cost.families.convolution import groups, model
from phantora.cost.families.convolution.case import Case, case_of, layout_ns, product_ns
from phantora.cost.families.convolution.passes import by_transforms
from phantora.cost.family import Prediction
from phantora.cost.gaussian_process import GaussianProcess, Tier
from phantora.cost.machine import Machine
from phantora.cost.table import Entry
from phantora.cost.tensors import HALVES
from phantora.cost.timing import kernel_ns, own_kernels
from phantora.cost.types import OperatorSignature

ELSEWHERE = 3.0  # octaves: as far counts a convolution of another geometry

# Fitted to hidden fifths of the H200's table (validation/compare/leave_out.py, seeds 3 and 4). Coordinates are the
# logarithms
# of positions, channels in, channels out and pixels; kinds as in `_kinds`.
TIERS = (
    Tier(2.0, (13.0, 120.0, 11.0, 1.0)),
    Tier(0.15, (4.0, 3.0, 3.0, 7.0)),
    Tier(0.007, (4.0, 3.0, 3.0, 7.0)),
    Tier(0.015, (4.0, 3.0, 3.0, 7.0)),
    Tier(0.009, (2.7, inf, inf, 7.5)),
    Tier(0.003, (2.7, inf, inf, 7.5)),
    Tier(0.007, (3.0, inf, inf, inf)),
    Tier(0.004, (inf, inf, inf, inf)),
)
NOISE = 0.0006
_GEOMETRY = 1  # the tier of those with the same taps, stride, padding and dilation

# Of depthwise ones, by the likelihood of the H200's. Coordinates are the logarithms of positions, channels, pixels and
# taps; kinds as in `_depthwise_kinds`.
DEPTHWISE_TIERS = (
    Tier(1.0, (10.0, 9.0, 18.0, 2.2)),
    Tier(0.11, (1.9, 2.5, 1.9, 8.7)),
    Tier(0.05, (6.2, 43.0, 9.5, inf)),
    Tier(0.003, (12.0, inf, 0.6, inf)),
    Tier(0.003, (11.0, 0.3, inf, inf)),
    Tier(0.007, (16.0, inf, inf, inf)),
)
DEPTHWISE_NOISE = 0.0018
_DEPTHWISE_GEOMETRY = 2


@dataclass(frozen=True)
class Timed:
    """A measured case: ns of its products, and of the changes of layout around them."""

    case: Case
    product: float
    layout: float

    @property
    def path(self) -> str:
        """Kernels of the case, as in `Case.path`."""
        return self.case.path(self.layout > 0.0)


class _Work:
    """Measured cases of one kind of work."""

    def __init__(self, machine: Machine, timed: Sequence[Timed]) -> None:
        self._machine = machine
        depthwise = timed[0].case.depthwise  # all or none of them
        tiers, noise = (DEPTHWISE_TIERS, DEPTHWISE_NOISE) if depthwise else (TIERS, NOISE)
        self._geometry = _DEPTHWISE_GEOMETRY if depthwise else _GEOMETRY

        def process(
            points: Sequence[Timed], values: Iterable[float], kinds: Iterable[tuple[Hashable, ...]]
        ) -> GaussianProcess:
            return GaussianProcess(tiers, noise, [t.case.at for t in points], list(kinds), list(values))

        paths = (t.case.kinds(t.path) for t in timed)
        self._products = process(timed, (log(t.product / product_ns(machine, t.case)) for t in timed), paths)
        foreign = [t for t in timed if t.case.foreign]
        self._choices = process(foreign, (float(t.layout > 0.0) for t in foreign), (t.case.kinds("") for t in foreign))
        changed = [t for t in foreign if t.layout > 0.0]
        ratios = (log(t.layout / layout_ns(machine, t.case)) for t in changed)
        self._layouts = process(changed, ratios, (t.case.kinds("") for t in changed))
        self.processes = self._products, self._choices, self._layouts

    def read(self, case: Case) -> tuple[float, float]:
        """ns of `case`, and the octaves to the nearest of the same geometry."""
        converted = case.foreign and (
            (case.mixed and not case.pointwise) or self._choices.expectation(case.at, case.kinds("")) > 0.5
        )
        kinds = case.kinds(case.path(converted))
        ns = product_ns(self._machine, case) * exp(self._products.expectation(case.at, kinds))
        if converted:
            ns += layout_ns(self._machine, case) * exp(self._layouts.expectation(case.at, case.kinds("")))
        near = self._products.distance(case.at, kinds[self._geometry], self._geometry)
        if near is None:
            anywhere = self._products.distance(case.at, kinds[0], 0)
            near = ELSEWHERE + (anywhere or 0.0)
        return ns, near


class Convolutions:
    """Predicts an operator from its measured `entries` on the GPU of `machine`."""

    def __init__(self, machine: Machine, entries: Iterable[Entry]) -> None:
        self._machine = machine
        self._unread: dict[bool, list[Entry]] = {True: [], False: []}  # of halves or not, until they are asked for
        for entry in entries:
            self._unread[any(f'"{dtype}"' in entry.signature for dtype in HALVES)].append(entry)
        self._timed: dict[tuple[Hashable, ...], list[Timed]] = {}
        self._works: dict[tuple[Hashable, ...], _Work] = {}
        self._timed_groups: dict[tuple[Hashable, ...], list[groups.Timed]] = {}
        self._groups: dict[tuple[Hashable, ...], groups.Groups] = {}

    def read(self, signature: OperatorSignature, compute: str) -> Prediction | None:
        """ns of a convolution, or of several gradients one after the other, and the octaves to the nearest of the same
        geometry; None if nothing like it was measured."""
        cases = [case_of(part, compute) for part in model.gradients(signature)]
        found = [self._read(case) for case in cases if case is not None]
        near = [each for each in found if each is not None]
        if not near or len(near) < len(cases):
            return None
        error = groups.GROUPS_ERROR if any(groups.uneven(case) for case in cases if case is not None) else None
        return Prediction(sum(ns for ns, _ in near), max(distance for _, distance in near), error)

    def processes(self) -> Iterator[GaussianProcess]:
        """All that predictions are read off."""
        for halves in (True, False):
            self._time(halves)
        for kind in self._timed:
            yield from self._work(kind).processes
        for kind in self._timed_groups:
            yield from self._of_groups(kind).processes

    def _read(self, case: Case) -> tuple[float, float] | None:
        self._time(case.dtype in HALVES)
        if groups.uneven(case):
            return self._of_groups(case.work).read(case) if case.work in self._timed_groups else None
        return self._work(case.work).read(case) if case.work in self._timed else None

    def _time(self, halves: bool) -> None:
        for entry in self._unread.pop(halves, ()):
            cases = cases_of(entry)
            for group in groups.timed_groups(entry, cases):
                self._timed_groups.setdefault(group.case.work, []).append(group)
            for each in timed_cases(entry, cases):
                self._timed.setdefault(each.case.work, []).append(each)

    def _work(self, kind: tuple[Hashable, ...]) -> _Work:
        if kind not in self._works:
            self._works[kind] = _Work(self._machine, self._timed[kind])
        return self._works[kind]

    def _of_groups(self, kind: tuple[Hashable, ...]) -> groups.Groups:
        if kind not in self._groups:
            self._groups[kind] = groups.Groups(self._machine, self._timed_groups[kind])
        return self._groups[kind]


def cases_of(entry: Entry) -> list[Case | None]:
    """The case of each gradient that `entry` measures, or of its forward pass."""
    return [case_of(part, entry.compute) for part in model.gradients(entry.parsed)]


def timed_cases(entry: Entry, cases: Sequence[Case | None]) -> Iterator[Timed]:
    """The `cases` with the times that `entry` has measured of them, without those in uneven groups."""
    kernels = own_kernels(entry)
    if by_transforms(entry):
        return
    for case, ran in zip(cases, model.by_gradient(kernels) if len(cases) > 1 else (kernels,), strict=True):
        if case is None or groups.uneven(case):
            continue
        layout = sum(kernel_ns(kernel, "convolution") for kernel in ran if model.changes_layout(kernel))
        product = sum(kernel_ns(kernel, "convolution") for kernel in ran) - layout
        if product > 0.0:
            yield Timed(case, product, layout)

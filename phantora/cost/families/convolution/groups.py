"""Convolutions in groups of a width that is no power of two, for which cuDNN has no kernel.

It pads each group to the next power of two, and takes the kernel for all groups of that width; or it copies one group
after the other out of the tensors, and runs a convolution for each. Which of the two its heuristic chooses is read off
a Gaussian process of the measured ones, and how far they are from the formulas below off two more.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log, log2, prod

from phantora.cost.families.convolution.case import Case, product_ns
from phantora.cost.gaussian_process import GaussianProcess, Tier
from phantora.cost.machine import Machine
from phantora.cost.table import Entry, TimedKernel
from phantora.cost.tensors import contiguous_strides
from phantora.cost.timing import kernel_ns, own_kernels

PADDED, SLICED = "padded", "sliced"
WIDEST = 256  # channels of a group that cuDNN pads to; wider ones are always sliced
NARROWEST = 4  # channels of a group, the least that has a kernel
# Measured on an H100 (validation/probes/convolutions_random.py groups): kernels that pad take
# so long for a million elements that they read, where channels are last and where they are not (which are turned at
# the same time), and some time each. Kernels that slice: likewise, for a group.
PAD_NS, TURN_NS, PAD_START_NS, PADS = 7.7e-3, 6.0e-3, 8000.0, 3
SLICE_NS, SLICE_START_NS = 3.0e-3, 6500.0
# A group's gradient of the weight has few tiles, and so its time follows no law of arithmetic. Fitted to 551 of them in
# logarithms of positions, channels and taps.
WEIGHT = (-7.5, 0.75, 0.85, 0.34)
# With 2,046 of these measured and 1,035 others to predict: 8 % off in the median for outputs in 16 bits, 9 % for
# gradients of inputs, 36 % for those of weights; the right path is chosen in 81 %. Coordinates are the logarithms of
# positions, channels, channels of a group and pixels; kinds as in `_kinds`.
TIERS = (
    Tier(1.0, (8.0, 8.0, 8.0, 8.0)),
    Tier(0.1, (3.0, 3.0, 2.0, 4.0)),
    Tier(0.05, (3.0, 3.0, 3.0, 4.0)),
    Tier(0.05, (3.0, 3.0, 2.0, 4.0)),
    Tier(0.03, (3.0, 3.0, inf, 5.0)),
    Tier(0.02, (3.0, 3.0, inf, 5.0)),
    Tier(0.02, (3.0, inf, inf, 5.0)),
    Tier(0.02, (2.0, inf, inf, inf)),
)
NOISE, CHOICE_NOISE = 0.01, 0.02
GROUPS_ERROR = 0.5  # the 90th percentile of those predicted, outputs and inputs' gradients


def uneven(case: Case) -> bool:
    """True for groups of a width that is no power of two."""
    width = case.w.shape[1]
    return case.geometry[-1] not in ("", "depthwise") and not case.transposed and width & (width - 1) != 0


@dataclass(frozen=True)
class Timed:
    """A measured case: which way it took, and its ns."""

    case: Case
    path: str
    ns: float


class Groups:
    """Measured cases of one kind of work."""

    def __init__(self, machine: Machine, timed: Sequence[Timed]) -> None:
        self._machine = machine
        chosen = [float(each.path == PADDED) for each in timed]
        self._choice = _process([each.case for each in timed], "", chosen, CHOICE_NOISE)
        self._ratios = {}
        for path in (PADDED, SLICED):
            points = [each for each in timed if each.path == path]
            ratios = [log(each.ns / _ns(machine, each.case, path)) for each in points]
            self._ratios[path] = _process([each.case for each in points], path, ratios, NOISE)
        self.processes = (self._choice, *self._ratios.values())

    def read(self, case: Case) -> tuple[float, float]:
        """ns of `case`, and the octaves to the nearest that was measured."""
        narrow = case.w.shape[1] <= WIDEST
        padded = narrow and self._choice.expectation(_at(case), _kinds(case, "")) > 0.5
        path = PADDED if padded else SLICED
        ratio = self._ratios[path].expectation(_at(case), _kinds(case, path))
        return _ns(self._machine, case, path) * exp(ratio), self._choice.distance(_at(case), "", 0) or 0.0


def timed_groups(entry: Entry, cases: Sequence[Case | None]) -> Iterator[Timed]:
    """The convolutions in uneven groups that `entry` measures; `cases` has one for each of its gradients."""
    if not any(case is not None and uneven(case) for case in cases):
        return
    for case, ran in zip(cases, _by_gradient(entry, len(cases)), strict=False):
        if case is None or not uneven(case) or not ran:
            continue
        groups = case.x.shape[1] // case.w.shape[1]
        sliced = any("Slice" in kernel.name for kernel in ran)
        padded = not sliced and any("tensorTransform" in kernel.name for kernel in ran)
        if padded or sum(not _moves(kernel) for kernel in ran) >= groups:
            yield Timed(case, PADDED if padded else SLICED, sum(kernel_ns(kernel, "convolution") for kernel in ran))


def _by_gradient(entry: Entry, gradients: int) -> Sequence[Sequence[TimedKernel]]:
    """The kernels of each gradient, one or two. Behind the last product of the inputs' comes one kernel that moves its
    result."""
    kernels = own_kernels(entry)
    if gradients < 2:
        return (kernels,)
    of_inputs = [i for i, kernel in enumerate(kernels) if "dgrad" in kernel.name.lower()]
    if not of_inputs:
        return ()
    end = of_inputs[-1] + 1
    while end < len(kernels) and "splitKreduce" in kernels[end].name:
        end += 1
    end += end < len(kernels) and _moves(kernels[end]) and any(_moves(kernel) for kernel in kernels[: of_inputs[0]])
    return kernels[:end], kernels[end:]


def _moves(kernel: TimedKernel) -> bool:
    return any(word in kernel.name for word in ("Transform", "Slice", "Padding", "nchwToNhwc", "nhwcToNchw", "splitK"))


def _process(cases: Sequence[Case], path: str, values: Sequence[float], noise: float) -> GaussianProcess:
    kinds = [_kinds(case, path) for case in cases]
    return GaussianProcess(TIERS, noise, [_at(case) for case in cases], kinds, list(values))


def _at(case: Case) -> tuple[float, ...]:
    positions, channels, _, pixels = case.at
    return positions, channels, log2(case.w.shape[1]), pixels


def _kinds(case: Case, path: str) -> tuple[Hashable, ...]:
    """Kinds at each tier, widest first. Slices of rows that are no multiple of 16 bytes have other kernels."""
    width, groups = case.w.shape[1], case.x.shape[1] // case.w.shape[1]
    aligned = width % 8 == 0
    return (
        path,
        (path, aligned),
        (path, case.geometry[:-1]),
        (path, aligned, case.last),
        (path, width),
        (path, width, case.last),
        (path, width, groups),
        (path, width, groups, case.x.shape[2:]),
    )


def _ns(machine: Machine, case: Case, path: str) -> float:
    """Time by formula."""
    return _padded_ns(machine, case) if path == PADDED else _sliced_ns(machine, case)


def _padded_ns(machine: Machine, case: Case) -> float:
    whole = _padded(case)
    x, w, out = case.x.shape, case.w.shape, case.out
    read = {"output": (x, w, whole.out), "input": (out, w, whole.x.shape), "weight": (x, out, whole.w.shape)}
    elements = sum(prod(shape) for shape in read[_which(case)])
    return product_ns(machine, whole) + PADS * PAD_START_NS + (PAD_NS if case.last else TURN_NS) * elements


def _sliced_ns(machine: Machine, case: Case) -> float:
    groups = case.x.shape[1] // case.w.shape[1]
    each = _group(case)
    product = product_ns(machine, each)
    if _which(case) == "weight":
        start, positions, channels, taps = WEIGHT
        of_positions, of_taps = case.out[0] * prod(case.out[2:]), prod(case.w.shape[2:])
        logarithm = start + positions * log(of_positions) + channels * log(case.w.shape[1]) + taps * log(of_taps)
        product = exp(logarithm) * 1e3
    moved = prod(each.x.shape) + prod(each.out)
    return groups * (product + SLICE_START_NS + SLICE_NS * moved)


def _which(case: Case) -> str:
    wanted = case.work[1]
    return "weight" if wanted == (False, True, False) else "input" if wanted == (True, False, False) else "output"


def _padded(case: Case) -> Case:
    """The case with groups as wide as the next power of two."""
    groups = case.x.shape[1] // case.w.shape[1]
    width, filters = _next(case.w.shape[1]), _next(case.w.shape[0] // groups)
    return _with(case, groups * width, groups * filters, width)


def _group(case: Case) -> Case:
    """One group of `case`."""
    groups = case.x.shape[1] // case.w.shape[1]
    return _with(case, case.w.shape[1], case.w.shape[0] // groups, case.w.shape[1])


def _with(case: Case, channels: int, filters: int, width: int) -> Case:
    shape = (case.x.shape[0], channels, *case.x.shape[2:])
    x = replace(case.x, shape=shape, stride=contiguous_strides(shape))
    w = replace(case.w, shape=(filters, width, *case.w.shape[2:]))
    return replace(case, x=x, w=w, out=(case.out[0], filters, *case.out[2:]))


def _next(width: int) -> int:
    found = NARROWEST
    while found < width:
        found *= 2
    return found

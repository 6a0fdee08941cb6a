"""Predicting convolutions from measured ones.

cuDNN chooses among dozens of kernels, no stub sees which, and the choice goes by what is equal rather than by what is
near: the same channels, the same image, the same layout. So the product, the choice between converting tensors (to
channels-last for tensor cores, to channels-first without) or not, and the conversions are each read off a field
(phantora.cost.random_field) of the measured ones.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, inf, log, log2, prod

from phantora.cost import flops
from phantora.cost.families import base_name
from phantora.cost.families.convolution import model
from phantora.cost.family import Prediction
from phantora.cost.machine import Machine
from phantora.cost.random_field import Field, Tier
from phantora.cost.table import Entry
from phantora.cost.tensors import HALVES, contiguous_strides, item_bytes, on_gpu
from phantora.cost.timing import kernel_ns, own_kernels
from phantora.cost.types import OperatorSignature, TensorSpec

START_NS = 2000.0  # of a product before and after its main loop
ELSEWHERE = 3.0  # octaves: as far counts a convolution of another geometry
AS_IT_IS, CONVERTED = "as it is", "converted"
# Groups of a width that is no power of two have no kernel that does them all: cuDNN runs one convolution a group, and
# where channels are last it copies each group's channels out and back. RegNet's 56 and 48 channels on an H100
# (results/image_models_h100.jsonl.gz, kernels nhwcSliceC and wgrad 64x64): the copies' share of a stream, and what a
# gradient takes longer than alone, ns.
SLICE_SHARE, SLICE_NS = 0.27, 2200.0
WEIGHT_NS, CONVERTED_NS = 30_000.0, 4_000.0
GROUPS_ERROR = 0.32  # of such ones: backward passes of RegNets came out at 0.68 to 1.19 of their time

# Fitted to hidden fifths of the H200's table (benchmarks/leave_out.py, seeds 3 and 4). Coordinates are the logarithms
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
class Case:
    """A convolution's output or one of its gradients: what the kernels that compute it depend on."""

    work: tuple[Hashable, ...]  # which, and what the tensor cores multiply
    geometry: tuple[Hashable, ...]
    dtype: str
    last: bool  # channels
    pointwise: bool
    x: TensorSpec
    w: TensorSpec
    out: tuple[int, ...]
    transposed: bool
    depthwise: bool
    mixed: bool  # one tensor's channels are last, another's not
    foreign: bool  # not in the layout of the kernels that converted tensors run in

    @property
    def at(self) -> tuple[float, ...]:
        """Coordinates in the field of convolutions: base-2 logarithms of its extents."""
        pixels = prod(self.x.shape[2:])
        others = (pixels, prod(self.w.shape[2:])) if self.depthwise else (self.w.shape[0], pixels)
        return tuple(log2(max(1, n)) for n in (self.x.shape[0] * pixels, self.x.shape[1], *others))

    def kinds(self, path: str) -> tuple[Hashable, ...]:
        """Those at each tier, widest first, of what takes `path`."""
        return self._depthwise_kinds(path) if self.depthwise else self._kinds(path)

    def _depthwise_kinds(self, path: str) -> tuple[Hashable, ...]:
        step = tuple(round(whole / max(1, part)) for whole, part in zip(self.x.shape[2:], self.out[2:], strict=True))
        form, channels, image = (path, self.geometry), self.x.shape[1], self.x.shape[2:]
        return path, (path, step), form, (form, channels), (form, image), (form, channels, image)

    def _kinds(self, path: str) -> tuple[Hashable, ...]:
        form = (path, self.geometry)
        channels = (form, self.x.shape[1], self.w.shape[0])
        image = (channels, self.x.shape[2:])
        return (
            path, form, (form, self.dtype), (form, self.last), channels, (channels, self.last), image,
            (image, self.x.shape[0]),
        )  # fmt: skip

    def path(self, converted: bool) -> str:
        """Which kernels may compute it. Those of one tap that are not converted are plain products, and
        depthwise ones have kernels of their own for either layout."""
        if not (self.foreign or self.pointwise or self.depthwise):
            return CONVERTED  # the kernels that converted tensors run in
        return CONVERTED if converted else f"{AS_IT_IS} {self.last}"


def case_of(signature: OperatorSignature, compute: str) -> Case | None:
    """What `signature` computes; None if it is no convolution of images. Those of sequences and of volumes are none:
    the analytic model is within a tenth of most, and what images add to it would move it by up to three times
    (wav2vec 2, Whisper, 3-D U-Nets, video ResNets; benchmarks/device/results/varied_h100.jsonl)."""
    name = base_name(signature.name)
    given = [t for t in on_gpu(signature.args) if len(t.shape) >= 3]
    backward = "backward" in name
    if len(given) < (3 if backward else 2):
        return None
    x, w = given[1:3] if backward else given[:2]
    if len(x.shape) != 4 or x.shape[2] == w.shape[2] == 1 < x.shape[3]:
        return None
    if backward:
        out, transposed = given[0].shape, signature.args[7:8] == (True,)
        mixed = min(prod(t.shape[2:]) for t in (given[0], x)) > 1 and _last(given[0]) != _last(x)
        geometry, wanted = signature.args[4:9], signature.args[10:11]
    else:
        transposed = "transpose" in name
        out = model.output(signature, name, x, w, transposed)
        geometry, wanted, mixed = tuple(v for v in signature.args if isinstance(v, tuple)), (), False
    groups = x.shape[1] // max(1, w.shape[1])
    sharing = "depthwise" if groups == x.shape[1] > 1 else f"groups of {w.shape[1]}" if groups > 1 else ""
    mixed = mixed and sharing != "depthwise"  # which have kernels for either layout of their input
    arithmetic = "half" if x.dtype in HALVES else compute or x.dtype
    plain = prod(w.shape[2:]) == 1 and not sharing and out[2:] == x.shape[2:]
    first = arithmetic == "float32" and sharing != "depthwise"  # the layout of kernels without tensor cores
    return Case(
        (name, *wanted, sharing == "depthwise", arithmetic), (w.shape[2:], *geometry, mixed, sharing), x.dtype,
        _last(x), plain, x, w, out, transposed,
        sharing == "depthwise", mixed, _last(x) == first,
    )  # fmt: skip


def _last(x: TensorSpec) -> bool:
    return len(x.stride) > 1 and x.stride[1] == 1


@dataclass(frozen=True)
class Timed:
    """A measured case: ns of its products, and of the changes of layout around them."""

    case: Case
    product: float
    layout: float

    @property
    def path(self) -> str:
        """Which kernels take the case: those of `Case.path`."""
        return self.case.path(self.layout > 0.0)


class _Work:
    """Measured cases of one kind of work."""

    def __init__(self, machine: Machine, timed: Sequence[Timed]) -> None:
        self._machine = machine
        depthwise = timed[0].case.depthwise  # all or none of them
        tiers, noise = (DEPTHWISE_TIERS, DEPTHWISE_NOISE) if depthwise else (TIERS, NOISE)
        self._geometry = _DEPTHWISE_GEOMETRY if depthwise else _GEOMETRY

        def field(members: Sequence[Timed], values: Iterable[float], kinds: Iterable[tuple[Hashable, ...]]) -> Field:
            return Field(tiers, noise, [t.case.at for t in members], list(kinds), list(values))

        paths = (t.case.kinds(t.path) for t in timed)
        self._products = field(timed, (log(t.product / product_ns(machine, t.case)) for t in timed), paths)
        foreign = [t for t in timed if t.case.foreign]
        self._choices = field(foreign, (float(t.layout > 0.0) for t in foreign), (t.case.kinds("") for t in foreign))
        changed = [t for t in foreign if t.layout > 0.0]
        ratios = (log(t.layout / layout_ns(machine, t.case)) for t in changed)
        self._layouts = field(changed, ratios, (t.case.kinds("") for t in changed))
        self.fields = self._products, self._choices, self._layouts

    def read(self, case: Case) -> tuple[float, float]:
        """ns of `case`, and the octaves to the nearest of the same geometry."""
        converted = case.foreign and (
            (case.mixed and not case.pointwise)
            or self._choices.expectation(case.at, case.kinds("")) > 0.5
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

    def read(self, signature: OperatorSignature, compute: str) -> Prediction | None:
        """ns of a convolution, or of several gradients one after the other, and the octaves to the nearest of the same
        geometry; None if nothing like it was measured."""
        cases = [case_of(part, compute) for part in model.gradients(signature)]
        found = [self._read(case) for case in cases if case is not None]
        near = [each for each in found if each is not None]
        if not near or len(near) < len(cases):
            return None
        error = GROUPS_ERROR if any(_one_by_one(case) for case in cases if case is not None) else None
        return Prediction(sum(ns for ns, _ in near), max(distance for _, distance in near), error)

    def fields(self) -> Iterator[Field]:
        """All that predictions are read off."""
        for halves in (True, False):
            self._time(halves)
        for kind in self._timed:
            yield from self._work(kind).fields

    def _read(self, case: Case) -> tuple[float, float] | None:
        if _one_by_one(case):
            found = self._read(_group(case))
            if found is None:
                return None
            groups = case.x.shape[1] // case.w.shape[1]
            return groups * (found[0] + _around_group(self._machine, case)), found[1]
        self._time(case.dtype in HALVES)
        return self._work(case.work).read(case) if case.work in self._timed else None

    def _time(self, halves: bool) -> None:
        for each in timed_cases(self._unread.pop(halves, ())):
            self._timed.setdefault(each.case.work, []).append(each)

    def _work(self, kind: tuple[Hashable, ...]) -> _Work:
        if kind not in self._works:
            self._works[kind] = _Work(self._machine, self._timed[kind])
        return self._works[kind]


def _one_by_one(case: Case) -> bool:
    """A convolution a group. Outputs of channels-first images have kernels for all groups."""
    width = case.w.shape[1]
    if case.geometry[-1] in ("", "depthwise") or case.transposed or width & (width - 1) == 0:
        return False
    return case.last or len(case.work) > _FORWARD


_FORWARD = 3  # words of `Case.work` that say nothing of gradients


def _group(case: Case) -> Case:
    """One group of `case`."""
    groups = case.x.shape[1] // case.w.shape[1]
    shape = (case.x.shape[0], case.w.shape[1], *case.x.shape[2:])
    channels = case.w.shape[0] // groups
    stride = contiguous_strides((shape[0], *shape[2:], shape[1])) if case.last else contiguous_strides(shape)
    return replace(
        case,
        geometry=(*case.geometry[:-1], ""),
        x=replace(case.x, shape=shape, stride=(stride[0], stride[-1], *stride[1:-1]) if case.last else stride),
        w=replace(case.w, shape=(channels, *case.w.shape[1:])),
        out=(case.out[0], channels, *case.out[2:]),
    )


def _around_group(machine: Machine, case: Case) -> float:
    """ns of what one group takes beside its product."""
    of_weight = case.work[1:2] == ((False, True, False),)
    if not case.last:
        return CONVERTED_NS
    groups = case.x.shape[1] // case.w.shape[1]
    moved = (prod(case.x.shape) + prod(case.out)) * item_bytes(case.dtype) / groups
    return 2 * SLICE_NS + machine.memory_ns(2.0 * moved, SLICE_SHARE) + of_weight * WEIGHT_NS


def timed_cases(entries: Iterable[Entry]) -> Iterator[Timed]:
    """What `entries` say of convolutions, gradients apart."""
    for entry in entries:
        kernels, parts = own_kernels(entry), model.gradients(entry.parsed)
        for part, ran in zip(parts, model.by_gradient(kernels) if len(parts) > 1 else (kernels,), strict=True):
            case = case_of(part, entry.compute)
            layout = sum(kernel_ns(kernel, "convolution") for kernel in ran if model.changes_layout(kernel))
            product = sum(kernel_ns(kernel, "convolution") for kernel in ran) - layout
            if case is not None and product > 0.0:
                yield Timed(case, product, layout)


def product_ns(machine: Machine, case: Case) -> float:
    """The product at usual speeds: arithmetic and memory, one hiding part of the other."""
    if case.depthwise:
        return _depthwise_ns(machine, case)
    flop = flops.convolution(case.x.shape, case.w.shape, case.out, case.transposed)
    moved = (prod(case.x.shape) + prod(case.w.shape) + prod(case.out)) * item_bytes(case.dtype)
    tensor_cores = "tfloat32" if case.work[-1] == "tf32" else case.dtype
    return START_NS + hypot(flop / (machine.peak(tensor_cores) * machine.fit.conv_peak), moved / machine.stream_rate)


def _depthwise_ns(machine: Machine, case: Case) -> float:
    """Every tap of every result, empty ones of a stride included."""
    of_inputs = case.work[1] == (True, False, False)
    taps = prod(case.x.shape if of_inputs else case.out) * prod(case.w.shape[2:])
    moved = (prod(case.x.shape) + prod(case.out)) * item_bytes(case.dtype)
    return START_NS + hypot(machine.cycles_ns(taps * model.DEPTHWISE_CYCLES[0]), moved / machine.stream_rate)


def layout_ns(machine: Machine, case: Case) -> float:
    """ns of the kernels that change the layout of the case's tensors."""
    return model.layout_ns(machine, case.x, (case.x.shape, case.out, case.w.shape))

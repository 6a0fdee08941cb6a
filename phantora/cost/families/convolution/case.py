"""A convolution's output or one of its gradients: what the kernels that compute it depend on."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import hypot, log2, prod

from phantora.cost import flops
from phantora.cost.families import base_name
from phantora.cost.families.convolution import model
from phantora.cost.machine import Machine
from phantora.cost.tensors import HALVES, item_bytes, on_gpu
from phantora.cost.types import OperatorSignature, TensorSpec

START_NS = 2000.0  # of a product before and after its main loop
AS_IT_IS, CONVERTED = "as it is", "converted"


@dataclass(frozen=True, kw_only=True)
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
        """Kinds at each tier, widest first, of a case that takes `path`."""
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
            path,
            form,
            (form, self.dtype),
            (form, self.last),
            channels,
            (channels, self.last),
            image,
            (image, self.x.shape[0]),
        )

    def path(self, converted: bool) -> str:
        """Kernels that may compute the case. With one tap and no conversion it is a plain product. Depthwise cases have
        kernels of their own for either layout."""
        if not (self.foreign or self.pointwise or self.depthwise):
            return CONVERTED  # the kernels that converted tensors run in
        return CONVERTED if converted else f"{AS_IT_IS} {self.last}"


def case_of(signature: OperatorSignature, compute: str) -> Case | None:
    """The case of `signature`; None if it is no convolution of images. Sequences and volumes are none: the analytic
    model is within a tenth of most, and the corrections of images would change it by up to three times (wav2vec 2,
    Whisper, 3-D U-Nets, video ResNets; validation/workloads)."""
    name = base_name(signature.name)
    given = [t for t in on_gpu(signature.args) if len(t.shape) >= 3]
    backward = "backward" in name
    if len(given) < (3 if backward else 2):
        return None
    x, w = given[1:3] if backward else given[:2]
    if len(x.shape) != 4 or len(w.shape) != 4 or x.shape[2] == w.shape[2] == 1 < x.shape[3]:
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
        work=(name, *wanted, sharing == "depthwise", arithmetic),
        geometry=(w.shape[2:], *geometry, mixed, sharing),
        dtype=x.dtype,
        last=_last(x),
        pointwise=plain,
        x=x,
        w=w,
        out=out,
        transposed=transposed,
        depthwise=sharing == "depthwise",
        mixed=mixed,
        foreign=_last(x) == first,
    )


def _last(x: TensorSpec) -> bool:
    return len(x.stride) > 1 and x.stride[1] == 1


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

"""A convolution's passes as cuDNN sees them: the output of a plain one, its input's gradient, its weight's gradient.

A transposed convolution's output is the input's gradient of the plain one with the same weight, and the other way
round. So measured passes of either count for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from phantora.cost.families import base_name
from phantora.cost.families.convolution import model
from phantora.cost.table import Entry, TimedKernel
from phantora.cost.tensors import ints_at, on_gpu
from phantora.cost.timing import kernel_ns, own_kernels
from phantora.cost.types import OperatorSignature, TensorSpec

OUTPUT, INPUT, WEIGHT = "fprop", "dgrad", "wgrad"
TRANSFORM = "fft2d"  # in names of kernels
_GENERAL = ("convolution", "_convolution")  # of either kind, by an argument
# Where an operator's arguments hold stride and dilation.
_BACKWARD = (4, 6)
_PLACES = {
    "cudnn_convolution": (3, 4),
    "cudnn_convolution_transpose": (4, 5),
    "convolution": (3, 5),
    "_convolution": (3, 5),
    "cudnn_convolution_relu": (3, 5),
    "_conv_depthwise2d": (4, 6),
    "conv_depthwise3d": (4, 6),
}


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One pass. The plain convolution has `channels` in `inside` pixels, and `filters` in `outside` pixels."""

    which: str
    batch: int
    channels: int
    filters: int
    groups: int
    inside: int
    outside: int
    taps: int
    stride: int  # the product of those of all dimensions
    dilation: int  # the largest
    dimensions: int  # 1 for sequences, also for images of one row
    last: bool  # channels
    dtype: str
    arithmetic: str  # "half", "tf32", or a dtype
    image: tuple[int, ...] = ()  # extents of `inside`
    filter: tuple[int, ...] = ()  # extents of `taps`

    @property
    def depthwise(self) -> bool:
        """A channel a group."""
        return self.groups == self.channels > 1

    @property
    def plain(self) -> bool:
        """A product of matrices."""
        return self.taps == 1 and self.inside == self.outside and self.stride == 1 and self.groups == 1


def passes_of(signature: OperatorSignature, compute: str) -> tuple[Pass, ...]:
    """Passes of an operator, in the order of its kernels; empty if its arguments are not as expected."""
    found = [_pass(part, compute) for part in model.gradients(signature)]
    return tuple(each for each in found if each is not None) if None not in found else ()


def by_transforms(entry: Entry) -> bool:
    """True if cuDNN convolved in TF32 by Fourier transforms. It does so if the filter is as large as the image and few
    images meet few filters. These are 20 times as fast as its other kernels, so larger cases are not predicted from
    them."""
    return entry.compute == "tf32" and any(TRANSFORM in kernel.name for kernel in entry.kernels)


def timed_passes(entry: Entry) -> Iterator[tuple[Pass, float]]:
    """The passes of a measured operator with their ns."""
    for work, ran in run_passes(entry):
        ns = sum(kernel_ns(kernel, "convolution") for kernel in ran)
        if ns > 0.0:
            yield work, ns


def run_passes(entry: Entry) -> Iterator[tuple[Pass, Sequence[TimedKernel]]]:
    """The passes of a measured operator with their kernels."""
    if by_transforms(entry):
        return
    passes, kernels = passes_of(entry.parsed, entry.compute), own_kernels(entry)
    yield from zip(passes, model.by_gradient(kernels) if len(passes) > 1 else (kernels,), strict=False)


def _pass(signature: OperatorSignature, compute: str) -> Pass | None:
    name, args = base_name(signature.name), signature.args
    backward = "backward" in name
    places = _BACKWARD if backward else _PLACES.get(name)
    given = [t for t in on_gpu(args) if len(t.shape) >= 3]
    if places is None or len(given) < (3 if backward else 2):
        return None
    x, w = given[1:3] if backward else given[:2]
    if len({len(t.shape) for t in given[: 3 if backward else 2]}) != 1:
        return None
    transposed = args[7:8] == (True,) if backward else "transpose" in name
    transposed |= name in _GENERAL and args[6:7] == (True,)
    out = given[0].shape if backward else model.output(signature, name, x, w, transposed)
    big, small = (out, x.shape) if transposed else (x.shape, out)
    stride, dilation = (ints_at(args, place) for place in places)
    which = OUTPUT
    if backward:
        which = WEIGHT if ints_at(args, 10)[:1] == (0,) else INPUT
    if transposed and which != WEIGHT:
        which = INPUT if which == OUTPUT else OUTPUT
    half = x.dtype in ("bfloat16", "float16")
    spatial = len(x.shape) - 2
    if not all((*x.shape, *w.shape, *out, *stride)) or big[1] < w.shape[1]:
        return None
    groups = max(1, big[1] // max(1, w.shape[1]))
    if small[1] < groups:
        return None
    return Pass(
        which=which,
        batch=x.shape[0],
        channels=big[1],
        filters=small[1],
        groups=groups,
        inside=prod(big[2:]),
        outside=prod(small[2:]),
        taps=prod(w.shape[2:]),
        stride=prod((stride * spatial)[:spatial]) if stride else 1,
        dilation=max(dilation, default=1),
        dimensions=1 if spatial == 2 and big[2] == w.shape[2] == 1 else spatial,
        last=_last(x) or _last(w),
        dtype=x.dtype,
        arithmetic="half" if half else compute or x.dtype,
        image=big[2:],
        filter=w.shape[2:],
    )


def _last(t: TensorSpec) -> bool:
    """True if the channels are last. False for a contiguous tensor of one pixel."""
    return len(t.stride) > 1 and t.stride[1] == 1 < t.shape[1] and t.stride[-1] == t.shape[1]

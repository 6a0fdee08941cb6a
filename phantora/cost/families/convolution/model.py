"""Convolutions: implicit matrix products, plus the layout changes that cuDNN needs around them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import ceil, prod
from typing import Protocol, TypeVar

from phantora.cost import flops
from phantora.cost.families.gemm import STEP_BYTES
from phantora.cost.machine import Machine
from phantora.cost.parse import compute_of
from phantora.cost.tensors import ints_at, item_bytes, nbytes, tensor_at
from phantora.cost.types import KernelLaunch, OperatorSignature, TensorSpec

LAYOUT_SHARE = 0.83  # of a vectorised stream: nchwToNhwc and its inverse on H200
LAYOUT_ROW, LAYOUT_CYCLES = 32, 0.37  # pixels of a channel fill rows of that many; SM cycles of an element of these
PACKED = 64  # channels: narrower groups share tiles
DEPTHWISE_CYCLES = (0.10, 0.04)  # SM cycles per tap and result: of outputs and inputs, of the weight's gradient
FEW_CHANNELS, FEW_CHANNELS_SHARE = 8, 0.30  # an image's 3 channels are padded to 8, in slower kernels
ALIGNED_POSITIONS = 8
MEMORY_SHARE = 0.90  # of a vectorised stream, when bound by memory
# Tile shapes of cuDNN's implicit products and their speed relative to 128x128.
TILES = ((256, 128, 1.05), (128, 256, 1.05), (128, 128, 1.0), (128, 64, 0.75), (64, 128, 0.75), (64, 64, 0.6))


def convolution_ns(
    machine: Machine, signature: OperatorSignature, name: str, compute: str
) -> tuple[float, float, float] | None:
    """Time in ns, flops and bytes; None when the arguments are not as expected. It multiplies in `compute`."""
    if "backward" in name:
        return _backward(machine, signature, compute)
    x, weight = tensor_at(signature.args, 0), tensor_at(signature.args, 1)
    if x is None or weight is None or len(x.shape) < 3 or len(weight.shape) != len(x.shape):
        return None
    transposed = "transpose" in name or (name in ("convolution", "_convolution") and signature.args[6:7] == (True,))
    out = output(signature, name, x, weight, transposed)
    count = flops.convolution(x.shape, weight.shape, out, transposed)
    size = item_bytes(x.dtype)
    moved = float(nbytes(x) + nbytes(weight) + prod(out) * size)
    big, small = (x.shape, out) if transposed else (out, x.shape)
    groups = max(1, small[1] // weight.shape[1]) if not transposed else 1
    taps = prod(weight.shape[2:])
    if _depthwise(weight, groups):
        ns = _depthwise_ns(machine, count, 0)
    else:
        groups, pack = _packed(weight, groups)
        share, channels = _channels(weight.shape[1] * pack)
        ns = _product(machine, x, compute, prod(big[2:]) * x.shape[0], weight.shape[0], channels * taps, groups) / share
    pointwise = taps == 1 and big[2:] == small[2:]
    ns = max(ns, machine.memory_ns(moved, MEMORY_SHARE))
    return ns + _around(machine, x, (x.shape, out, weight.shape), pointwise), count, moved


def _depthwise(weight: TensorSpec, groups: int) -> bool:
    """One channel a group: direct kernels instead of products."""
    return groups > 1 and weight.shape[1] == 1


def _depthwise_ns(machine: Machine, flop: float, which: int) -> float:
    return machine.fit.floor_ns + machine.cycles_ns(flop / 2.0 * DEPTHWISE_CYCLES[which])


def _packed(weight: TensorSpec, groups: int) -> tuple[int, int]:
    """Groups that are computed as one, as dense blocks with zeros between them: how many such, and of how many."""
    pack = min(groups, max(1, PACKED // weight.shape[1]))
    return ceil(groups / pack), pack


def _channels(channels: int) -> tuple[float, int]:
    """Share of the usual speed, and the channels that are computed."""
    return (FEW_CHANNELS_SHARE, FEW_CHANNELS) if channels < FEW_CHANNELS else (1.0, channels)


def _backward(machine: Machine, signature: OperatorSignature, compute: str) -> tuple[float, float, float] | None:
    grad, x, weight = (tensor_at(signature.args, i) for i in range(3))
    if grad is None or x is None or weight is None or min(len(t.shape) for t in (grad, x, weight)) < 3:
        return None
    args = signature.args
    transposed = bool(args[7]) if len(args) > 7 and isinstance(args[7], (bool, int)) else False
    mask = ints_at(args, 10) or (1, 1, 0)
    wants_x, wants_w = bool(mask[0]), bool(mask[1]) if len(mask) > 1 else True
    count = flops.convolution_backward(grad.shape, x.shape, weight.shape, transposed, wants_x, wants_w)
    positions = prod((x if transposed else grad).shape[2:]) * x.shape[0]
    taps = prod(weight.shape[2:])
    groups = max(1, (grad if transposed else x).shape[1] // weight.shape[1])
    pointwise = taps == 1 and grad.shape[2:] == x.shape[2:]
    depthwise = _depthwise(weight, groups)
    groups, pack = _packed(weight, groups)
    each = float(nbytes(grad) + nbytes(weight) + nbytes(x))
    memory = machine.memory_ns(each, MEMORY_SHARE)
    layout = _around(machine, x, (grad.shape, x.shape, weight.shape), pointwise)
    ns, moved = 0.0, 0.0
    if wants_x:
        if depthwise:
            product = _depthwise_ns(machine, flops.convolution(x.shape, weight.shape, grad.shape, transposed), 0)
        else:
            inner = ceil(weight.shape[0] / groups) * taps
            product = _product(machine, x, compute, prod(x.shape[2:]) * x.shape[0], x.shape[1], inner, groups)
            if not transposed:  # a stride leaves most taps of the input's gradient empty
                product *= min(1.0, positions / max(1, prod(x.shape[2:]) * x.shape[0]))
        ns, moved = ns + max(product, memory) + layout, moved + each
    if wants_w:
        if depthwise:
            product = _depthwise_ns(machine, flops.convolution(x.shape, weight.shape, grad.shape, transposed), 1)
        else:
            share, channels = _channels(weight.shape[1] * pack)
            n = channels * taps * groups
            product = (
                _product(machine, x, compute, ceil(weight.shape[0] / groups), n, positions, groups, split=True) / share
            )
        ns, moved = ns + max(product, memory) + layout, moved + each
    return max(ns, machine.fit.floor_ns), count, moved


class _Named(Protocol):
    @property
    def name(self) -> str: ...


K = TypeVar("K", bound=_Named)

_HELPER = re.compile("nchwToNhwc|nhwcToNchw|convertTensor|tensorTransform|Padding|init_device|scalePacked")
_WEIGHT_FIRST = "conv_depthwise2d_grad_weight_kernel"
_TRANSFORMS = re.compile("fft2d|cf32")
_MORE_OF_INPUTS = re.compile("nhwcToNchw|dgrad|splitKreduce")


def gradients(signature: OperatorSignature) -> tuple[OperatorSignature, ...]:
    """A backward pass for inputs and weight as two, one for each; others as they are, less the bias's."""
    signature = without_bias(signature) or signature
    mask = ints_at(signature.args, 10)
    if "convolution_backward" not in signature.name or len(mask) < 2 or not (mask[0] and mask[1]):
        return (signature,)

    def only(*wanted: bool) -> OperatorSignature:
        return replace(signature, args=(*signature.args[:10], wanted, *signature.args[11:]))

    return only(True, False, False), only(False, True, False)


def without_bias(signature: OperatorSignature) -> OperatorSignature | None:
    """A backward pass less the bias's gradient, which is a sum of its own; None if there is none to leave out. What
    remains takes as long: 46 pairs in the tables, median 1.00, of 0.93 to 1.08."""
    args, mask = signature.args, ints_at(signature.args, 10)
    if "convolution_backward" not in signature.name or len(mask) < 3 or not (mask[0] or mask[1]):
        return None
    bare = replace(signature, args=(*args[:3], (0,), *args[4:10], (bool(mask[0]), bool(mask[1]), False), *args[11:]))
    return bare if bare.args != args else None


def changes_layout(kernel: _Named) -> bool:
    """True if the kernel turns NCHW into NHWC, or back."""
    return "nchwToNhwc" in kernel.name or "nhwcToNchw" in kernel.name


def by_gradient(kernels: Sequence[K]) -> tuple[Sequence[K], Sequence[K]]:
    """The kernels of a backward pass for inputs and weight: the inputs' come first, but for torch's own depthwise."""
    if kernels and _WEIGHT_FIRST in kernels[0].name:
        return kernels[1:], kernels[:1]
    end = next((at for at, kernel in enumerate(kernels) if not _HELPER.search(kernel.name)), len(kernels) - 1) + 1
    # Some groups have a kernel each.
    end = max((at + 1 for at, kernel in enumerate(kernels) if "dgrad" in kernel.name), default=end)
    if end and _TRANSFORMS.search(kernels[end - 1].name):  # of the filters; then those of some images at a time
        while end < len(kernels) and _TRANSFORMS.search(kernels[end].name):
            end += 1
    while end < len(kernels) and _MORE_OF_INPUTS.search(kernels[end].name):
        end += 1
    return kernels[:end], kernels[end:]


def arithmetic(x: TensorSpec, kernels: tuple[KernelLaunch, ...]) -> str:
    """Number format of the products: torch lets cuDNN use TF32 by default. A library call has its own."""
    if x.dtype != "float32" or (any(kernel.library for kernel in kernels) and not compute_of(kernels)):
        return x.dtype
    return "tfloat32"


def _product(
    machine: Machine, x: TensorSpec, compute: str, m: int, n: int, k: int, groups: int, split: bool = False
) -> float:
    """An implicit product in whole waves of tiles. `split`: the inner dimension is cut to fill all SMs."""
    size = item_bytes(x.dtype)
    sms = machine.gpu.sms
    speed = machine.peak(compute) * machine.fit.conv_peak / sms
    depth = max(1, STEP_BYTES // size)
    n = ceil(n / groups)
    best = float("inf")
    for tm, tn, ease in TILES:
        count = ceil(m / tm) * ceil(n / tn) * groups
        step = 2.0 * tm * tn * depth / (speed * ease)
        steps = ceil(k / depth)
        waves = count / sms if split and count * steps > sms else ceil(count / sms)
        best = min(best, waves * steps * step)
    return machine.fit.gemm_prologue_ns + best


def _around(machine: Machine, x: TensorSpec, shapes: Sequence[tuple[int, ...]], pointwise: bool) -> float:
    """cuDNN's tensor-core kernels want channels last; other layouts are changed before and after.

    Kernels of one tap and stride 1 are plain products in either layout if rows are aligned.
    """
    if x.stride[1:2] == (1,) or (pointwise and prod(x.shape[2:]) % ALIGNED_POSITIONS == 0):
        return 0.0
    return layout_ns(machine, x, shapes)


def layout_ns(machine: Machine, x: TensorSpec, shapes: Sequence[tuple[int, ...]]) -> float:
    """Changing the layout of tensors of `shapes`, elements as those of `x`."""
    total = 0.0
    for shape in shapes:
        pixels = prod(shape[2:])
        if pixels > 1:
            padded = prod(shape[:2]) * ceil(pixels / LAYOUT_ROW) * LAYOUT_ROW
            issue = machine.fit.floor_ns + machine.cycles_ns(padded * LAYOUT_CYCLES)
            total += max(machine.memory_ns(2.0 * prod(shape) * item_bytes(x.dtype), LAYOUT_SHARE), issue)
    return total


def output(
    signature: OperatorSignature, name: str, x: TensorSpec, weight: TensorSpec, transposed: bool
) -> tuple[int, ...]:
    """The output's shape, from stride, padding and dilation where the schema has them."""
    if signature.outputs:
        return signature.outputs[0].shape
    order = {
        "cudnn_convolution": (3, 2, 4),
        "miopen_convolution": (4, 3, 5),
        "convolution": (3, 4, 5),
        "_convolution": (3, 4, 5),
        "cudnn_convolution_transpose": (4, 2, 5),
        "cudnn_convolution_relu": (3, 4, 5),
        "_slow_conv2d_forward": (4, 5, -1),
        "_conv_depthwise2d": (4, 5, 6),
        "slow_conv3d_forward": (4, 5, -1),
        "conv_depthwise3d": (4, 5, 6),
        "slow_conv_dilated2d": (4, 5, 6),
        "slow_conv_transpose2d": (4, 5, 7),
        "convolution_overrideable": (3, 4, 5),
        "cudnn_convolution_add_relu": (5, 6, 7),
    }.get(name, (3, 4, 5))
    dims = len(x.shape) - 2
    stride, padding, dilation = (
        _spread(ints_at(signature.args, i), dims, d) for i, d in zip(order, (1, 0, 1), strict=True)
    )
    spatial = []
    for i in range(dims):
        size, tap = x.shape[2 + i], dilation[i] * (weight.shape[2 + i] - 1) + 1
        if transposed:
            spatial.append(max(1, (size - 1) * stride[i] - 2 * padding[i] + tap))
        else:
            spatial.append(max(1, (size + 2 * padding[i] - tap) // max(1, stride[i]) + 1))
    channels = weight.shape[1] if transposed else weight.shape[0]
    return (x.shape[0], channels, *spatial)


def _spread(values: tuple[int, ...], dims: int, default: int) -> tuple[int, ...]:
    if not values:
        return (default,) * dims
    return (values * dims)[:dims] if len(values) == 1 else (values + (default,) * dims)[:dims]

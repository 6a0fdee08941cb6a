"""Operators as training steps issue them, from a few sizes: what the sweep is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from phantora.cost.parse import write_signature
from phantora.cost.tensors import contiguous_strides
from phantora.cost.types import OperatorSignature, TensorSpec
from phantora.cost.wanted import Wanted
from phantora.profile.rebuild import COPY, MEMSET, schema

NHWC = (0, 2, 3, 1)


def tensor(*shape: int, dtype: str = "bfloat16", order: tuple[int, ...] | None = None) -> TensorSpec:
    """A dense tensor; `order` lists its dimensions from the slowest to the fastest."""
    if order is None:
        return TensorSpec(dtype, shape, stride=contiguous_strides(shape))
    dense = contiguous_strides(tuple(shape[d] for d in order))
    stride = [0] * len(shape)
    for dim, step in zip(order, dense, strict=True):
        stride[dim] = step
    return TensorSpec(dtype, shape, stride=tuple(stride))


def heads(b: int, s: int, h: int, d: int) -> TensorSpec:
    """(batch, heads, sequence, size), as a view of a projection."""
    return tensor(b, h, s, d, order=(0, 2, 1, 3))


def wanted(name: str, *args: Any, compute: str = "", backward: bool = False) -> Wanted:
    """An operator; arguments that are left out have their defaults, as in a signature of a run."""
    rest = () if name in (COPY, MEMSET) else tuple(a.default_value for a in schema(name).arguments[len(args) :])
    return Wanted(signature=write_signature(OperatorSignature(name, args + rest, backward=backward)), compute=compute)


def flash(b: int, s: int, h: int, kv: int, d: int, causal: bool, dropout: float = 0.0) -> Iterator[Wanted]:
    """Forward and backward: batch, tokens, heads, heads of keys and values, elements of a head."""
    q, k = tensor(b, s, h, d), tensor(b, s, kv, d)
    lse = tensor(b, h, s, dtype="float32")
    state, unused = tensor(2, dtype="uint64"), tensor(dtype="uint64")
    yield wanted("aten::_flash_attention_forward", q, k, k, None, None, s, s, dropout, causal, False, d**-0.5)
    yield wanted(
        "aten::_flash_attention_backward",
        *(q, q, k, k, q, lse, None, None, s, s, dropout, causal, state, unused, d**-0.5),
        backward=True,
    )


def cudnn(b: int, s: int, h: int, kv: int, d: int, causal: bool, dropout: float = 0.0) -> Iterator[Wanted]:
    """As :func:`flash`, of cuDNN."""
    seed = tensor(dtype="int64")
    q, k = heads(b, s, h, d), heads(b, s, kv, d)
    lse = tensor(b, h, s, 1, dtype="float32")
    yield wanted("aten::_cudnn_attention_forward", q, k, k, None, None, None, s, s, True, dropout, causal, False)
    yield wanted(
        "aten::_cudnn_attention_backward",
        *(q, q, k, k, q, lse, seed, seed, None, None, None, s, s, dropout, causal),
        backward=True,
    )


def efficient(b: int, s: int, h: int, d: int, dtype: str, causal: bool, dropout: float = 0.0) -> Iterator[Wanted]:
    """Memory-efficient attention, both directions."""
    q, unused = tensor(b, s, h, d, dtype=dtype), TensorSpec("int64", (), stride=(), device="cpu")
    lse = tensor(b, h, -(-s // 32) * 32, dtype="float32")
    yield wanted("aten::_efficient_attention_forward", q, q, q, *(None,) * 5, dropout, int(causal), True)
    yield wanted(  # torch passes heads as the longest sequences
        "aten::_efficient_attention_backward",
        *(q, q, q, q, None, q, None, None, h, h, lse, dropout, unused, unused, int(causal), False),
        backward=True,
    )


def norms(rows: int, width: int, dtype: str) -> Iterator[Wanted]:
    """RMS and layer norm, both directions."""
    x, w = tensor(1, rows, width, dtype=dtype), tensor(width, dtype=dtype)
    stat, shape = tensor(1, rows, 1, dtype="float32"), (width,)
    yield wanted("aten::_fused_rms_norm", x, shape, w, 1e-5)
    yield wanted("aten::_fused_rms_norm_backward", x, x, shape, stat, w, (True,) * 2, backward=True)
    yield wanted("aten::native_layer_norm", x, shape, w, w, 1e-5)
    yield wanted("aten::native_layer_norm_backward", x, x, shape, stat, stat, w, w, (True,) * 3, backward=True)


def batch_norms(batch: int, c: int, size: int, dtype: str, last: bool) -> Iterator[Wanted]:
    """As torch chooses: cuDNN's for float32, its own for other types."""
    x = tensor(batch, c, size, size, dtype=dtype, order=NHWC if last else None)
    w = tensor(c, dtype="float32")
    if dtype == "float32":
        reserve = tensor(0, dtype="uint8")
        yield wanted("aten::cudnn_batch_norm", x, w, w, w, w, True, 0.1, 1e-5)
        yield wanted("aten::cudnn_batch_norm_backward", x, x, w, w, w, w, w, 1e-5, reserve, backward=True)
    else:
        yield wanted("aten::native_batch_norm", x, w, w, w, w, True, 0.1, 1e-5)
        yield wanted("aten::native_batch_norm_backward", x, x, *(w,) * 5, True, 1e-5, (True,) * 3, backward=True)


def group_norms(batch: int, c: int, size: int, groups: int, dtype: str) -> Iterator[Wanted]:
    """On a GPU torch makes the images contiguous before."""
    x, w, stat = (tensor(*shape, dtype=dtype) for shape in ((batch, c, size, size), (c,), (batch, groups)))
    shape = (batch, c, size * size, groups)
    yield wanted("aten::native_group_norm", x, w, w, *shape, 1e-5)
    yield wanted("aten::native_group_norm_backward", x, x, stat, stat, w, *shape, (True,) * 3, backward=True)


def resizings(batch: int, c: int, size: int, dtype: str, last: bool) -> Iterator[Wanted]:
    """Images of twice the extent, both directions."""
    order = NHWC if last else None
    x = tensor(batch, c, size, size, dtype=dtype, order=order)
    y = tensor(batch, c, 2 * size, 2 * size, dtype=dtype, order=order)
    scales, smaller, larger = (2.0, 2.0), (batch, c, size, size), (2 * size,) * 2
    yield wanted("aten::upsample_nearest2d", x, larger, *scales)
    yield wanted("aten::upsample_nearest2d_backward", y, larger, smaller, *scales, backward=True)
    yield wanted("aten::upsample_bilinear2d", x, larger, False, *scales)
    yield wanted("aten::upsample_bilinear2d_backward", y, larger, smaller, False, *scales, backward=True)


def average_pools(batch: int, c: int, size: int, dtype: str, last: bool) -> Iterator[Wanted]:
    """To half the extent, both directions."""
    order = NHWC if last else None
    x = tensor(batch, c, size, size, dtype=dtype, order=order)
    y = tensor(batch, c, size // 2, size // 2, dtype=dtype, order=order)
    window = ((2, 2), (2, 2), (0, 0), False, True, None)
    yield wanted("aten::avg_pool2d", x, *window)
    yield wanted("aten::avg_pool2d_backward", y, x, *window, backward=True)
    yield wanted("aten::_adaptive_avg_pool2d", x, (size // 2,) * 2)
    yield wanted("aten::_adaptive_avg_pool2d_backward", y, x, backward=True)


def bags(rows: int, width: int, batch: int, each: int) -> Iterator[Wanted]:
    """Sums of `each` rows of a table, both directions."""
    indices, offsets = tensor(batch * each, dtype="int64"), tensor(batch, dtype="int64")
    table, sums = tensor(rows, width, dtype="float32"), tensor(batch, width, dtype="float32")
    yield wanted("aten::_embedding_bag", table, indices, offsets)
    yield wanted(
        "aten::_embedding_bag_dense_backward",
        *(sums, indices, indices, offsets, tensor(0, dtype="int64"), rows, False, 0, None),
        backward=True,
    )


def graph(nodes: int, edges: int, width: int, dtype: str) -> Iterator[Wanted]:
    """Operators of graph layers on the features of nodes and edges, in both directions."""
    x, message = tensor(nodes, width, dtype=dtype), tensor(edges, width, dtype=dtype)
    index = tensor(edges, dtype="int64")
    wide = TensorSpec("int64", (edges, width), stride=(1, 0))
    yield wanted("aten::index_select", x, 0, index)
    yield wanted("aten::index_add_", x, 0, index, message, 1, backward=True)
    yield wanted("aten::gather", x, 0, wide)
    yield wanted("aten::scatter_add_", x, 0, wide, message)
    yield wanted("aten::index.Tensor", x, (index,))
    yield wanted("aten::_index_put_impl_", x, (index,), message, True, True, backward=True)


def convolution(
    batch: int, c: int, k: int, size: int, tap: int, stride: int, dtype: str, last: bool
) -> Iterator[Wanted]:
    """A square convolution of `c` to `k` channels, both directions; float32 counts as TF32."""
    pad, order = tap // 2 if tap % 2 else 0, NHWC if last else None  # even taps cut an image into patches
    out = (size + 2 * pad - tap) // stride + 1
    x = tensor(batch, c, size, size, dtype=dtype, order=order)
    w = tensor(k, c, tap, tap, dtype=dtype, order=order)
    y = tensor(batch, k, out, out, dtype=dtype, order=order)
    compute = "tf32" if dtype == "float32" else ""
    strides, pads, dilations = (stride,) * 2, (pad,) * 2, (1, 1)
    yield wanted("aten::cudnn_convolution", x, w, pads, strides, dilations, 1, False, False, True, compute=compute)
    mask = (c != 3, True, False)
    yield wanted(
        "aten::convolution_backward",
        *(y, x, w, (0,), strides, pads, dilations, False, (0, 0), 1, mask),
        compute=compute,
        backward=True,
    )


def depthwise(batch: int, c: int, size: int, tap: int, stride: int, dtype: str, last: bool) -> Iterator[Wanted]:
    """A convolution of each channel for itself, both directions: cuDNN's for channels-last images, else torch's own.
    With a bias for 7 taps, as ConvNeXt has it; fewer are followed by a norm that has one."""
    pad, order = tap // 2, NHWC if last else None
    out = (size + 2 * pad - tap) // stride + 1
    x = tensor(batch, c, size, size, dtype=dtype, order=order)
    w = tensor(c, 1, tap, tap, dtype=dtype, order=order)
    y = tensor(batch, c, out, out, dtype=dtype, order=order)
    compute = "tf32" if last and dtype == "float32" else ""
    strides, pads, dilations, biased = (stride,) * 2, (pad,) * 2, (1, 1), tap == 7
    if last:
        yield wanted("aten::cudnn_convolution", x, w, pads, strides, dilations, c, False, False, True, compute=compute)
    else:
        bias = tensor(c, dtype=dtype) if biased else None
        yield wanted("aten::_conv_depthwise2d", x, w, (tap, tap), bias, strides, pads, dilations)
    yield wanted(
        "aten::convolution_backward",
        *(y, x, w, (c if biased else 0,), strides, pads, dilations, False, (0, 0), c, (True, True, biased)),
        compute=compute,
        backward=True,
    )


def optimizers(shapes: Sequence[tuple[int, ...]], dtype: str, states: bool = True) -> Iterator[Wanted]:
    """Operators of optimizers and gradient clipping on a list of tensors; `states`: also with four such lists."""
    items = tuple(tensor(*shape, dtype=dtype) for shape in shapes)
    steps = tuple(tensor(dtype="float32") for _ in shapes)
    if states:
        yield wanted(
            "aten::_fused_adamw_",
            *(items, items, items, items, (), steps, 1e-4, 0.9, 0.95, 0.1, 1e-8, False, False, None, None),
        )
        yield wanted("aten::_foreach_addcdiv_.ScalarList", items, items, items, (-0.1,) * len(items))
        yield wanted("aten::_foreach_addcmul_.Scalar", items, items, items, 0.05)
    yield wanted("aten::_foreach_mul_.Tensor", items, tensor(dtype="float32"))
    yield wanted("aten::_foreach_norm.Scalar", items, 2)
    yield wanted("aten::_foreach_mul_.Scalar", items, 0.9)
    yield wanted("aten::_foreach_sqrt", items)
    yield wanted("aten::_foreach_lerp_.Scalar", items, items, 0.1)
    yield wanted("aten::_foreach_add_.Scalar", items, 0.1)
    yield wanted("aten::_foreach_div_.ScalarList", items, (0.3,) * len(items))


def list_copies(shapes: Sequence[tuple[int, ...]]) -> Iterator[Wanted]:
    """Copies between lists of float32 and bfloat16 tensors of these shapes, and their concatenation."""
    wide = tuple(tensor(prod(shape), dtype="float32") for shape in shapes)
    flat = tuple(tensor(prod(shape)) for shape in shapes)
    for target, source in ((flat, wide), (wide, flat), (wide, wide), (flat, flat)):
        yield wanted("aten::_foreach_copy_", target, source, False)
    yield wanted("aten::cat", flat, 0)


def fsdp(shapes: Sequence[tuple[int, int]], ranks: int) -> Iterator[Wanted]:
    """Copies into and out of FSDP's buffers: gathered parameters, gradients to scatter."""
    shards = [-(-n // ranks) * k for n, k in shapes]
    whole = tuple(tensor(*shape) for shape in shapes)
    gathered = tensor(ranks, sum(shards))
    outputs = tuple(tensor(ranks, shard) for shard in shards)
    yield wanted("aten::split_with_sizes_copy.out", gathered, tuple(shards), 1, outputs)
    yield wanted("aten::_chunk_cat.out", whole, 0, ranks, tensor(ranks, sum(shards), dtype="float32"))
    yield wanted("aten::_chunk_cat.out", whole, 0, ranks, gathered)


def rotary(b: int, s: int, h: int, d: int) -> Iterator[Wanted]:
    """Rotary embedding and what goes with it, on views of projections."""
    view, whole, table = heads(b, s, h, d), tensor(b, h, s, d), tensor(s, d)
    half = TensorSpec("bfloat16", (b, h, s, d // 2), stride=view.stride)
    other = heads(b, s, h, d // 2)
    yield wanted("aten::mul.Tensor", view, table)
    yield wanted("aten::mul.Tensor", whole, table)
    yield wanted("aten::add.Tensor", view, whole, 1)
    yield wanted("aten::add.Tensor", view, view, 1)
    yield wanted("aten::add_.Tensor", whole, view, 1)
    yield wanted("aten::neg", half)
    yield wanted("aten::cat", (other, half), -1)
    yield wanted("aten::cat", (half, other), 3, backward=True)
    yield wanted("aten::copy_", whole, view, False)
    yield wanted("aten::copy_", tensor(b, s, h, d), tensor(b, s, h, d, order=(0, 2, 1, 3)), False)
    yield wanted("aten::mul.Tensor", tensor(b, s, h, d, dtype="float32"), tensor(1, s, 1, d, dtype="float32"))
    pairs = tensor(b, s, h, d // 2, dtype="complex64")
    yield wanted("aten::mul.Tensor", pairs, tensor(1, s, 1, d // 2, dtype="complex64"))
    yield wanted("aten::copy_", tensor(b, s, h, d, dtype="float32"), tensor(b, s, h, d), False)


def softmaxes(rows: int, width: int, dtype: str) -> Iterator[Wanted]:
    """Softmax and its logarithm along rows, and their gradients."""
    x = tensor(rows, width, dtype=dtype)
    for name in ("aten::_log_softmax", "aten::_softmax"):
        yield wanted(name, x, 1, False)
        yield wanted(f"{name}_backward_data", x, x, 1, dtype, backward=True)


def reductions(rows: int, width: int, dtype: str) -> Iterator[Wanted]:
    """Sums, means and maxima along rows, columns and of all elements."""
    x, flat = tensor(rows, width, dtype=dtype), tensor(rows * width, dtype=dtype)
    yield wanted("aten::sum.dim_IntList", x, (0,), True)
    yield wanted("aten::sum.dim_IntList", x, (-1,), False)
    yield wanted("aten::mean.dim", x, (-1,), True)
    yield wanted("aten::max.dim", x, -1, False)
    yield wanted("aten::amax", x, (-1,), True)
    yield wanted("aten::sum.dim_IntList", flat, ())
    yield wanted("aten::linalg_vector_norm", flat, 2.0, None, False, None)

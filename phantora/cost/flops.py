"""Floating-point operations by the conventions of ``torch.utils.flop_counter``, but for groups' gradients.

Written out because the simulator does not import torch. A multiply-add counts as two; attention
counts the whole square also when it is causal; everything but products, convolutions and attention
counts as zero.
"""

from __future__ import annotations

from math import prod

Shape = tuple[int, ...]


def gemm(m: int, n: int, k: int, batch: int = 1) -> float:
    """FLOPs of `batch` products of m x k by k x n."""
    return 2.0 * batch * m * n * k


def convolution(x: Shape, weight: Shape, out: Shape, transposed: bool = False) -> float:
    """As torch: 2 * batch * prod(spatial) * prod(weight). `weight` is (out, in / groups, *kernel)."""
    spatial = (x if transposed else out)[2:]
    return 2.0 * prod(spatial) * prod(weight) * x[0]


def convolution_backward(
    grad_out: Shape, x: Shape, weight: Shape, transposed: bool, input_wanted: bool, weight_wanted: bool
) -> float:
    """As many as the forward pass, once for each gradient that is wanted.

    torch's counter takes the weight's gradient of a grouped convolution for that of a dense one: 512 times too many
    for 512 groups.
    """
    return (input_wanted + weight_wanted) * convolution(x, weight, grad_out, transposed)


def attention(batch: int, heads: int, queries: int, keys: int, head: int, value_head: int) -> float:
    """FLOPs of the scores and of the sums of values; all lengths are elements, without a mask."""
    return gemm(queries, keys, head, batch * heads) + gemm(queries, value_head, keys, batch * heads)


def attention_backward(batch: int, heads: int, queries: int, keys: int, head: int, value_head: int) -> float:
    """Five products: the scores again, and the gradients of values, scores, queries and keys."""
    bh = batch * heads
    return (
        gemm(queries, keys, head, bh)
        + gemm(queries, keys, value_head, bh)
        + gemm(keys, value_head, queries, bh)
        + gemm(queries, head, keys, bh)
        + gemm(keys, head, queries, bh)
    )

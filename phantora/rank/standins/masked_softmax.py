"""Stand-ins for apex's softmax of attention scores, which Megatron-Core's local layers call.

Scores are [batches, heads, queries, keys], or [batches * heads, keys, keys] with the causal mask, in half precision.
Prices are those of torch's softmax; shapes and checks are those of apex's csrc (July 2026).
"""

from __future__ import annotations

from typing import Any

from phantora.rank.standins.kernels import check, launch, operator

LONGEST = 16384
THREADS = 128
WARP_THREADS = 32


def get_batch_per_block(queries: int, keys: int, batches: int, heads: int) -> int:
    """Rows that one block of threads takes: a warp takes two rows of up to 128 keys."""
    width = 1 << max(0, keys - 1).bit_length()
    return THREADS // min(width, WARP_THREADS) * (2 if width <= 128 else 1)


def causal_forward(scores: Any, scale: Any) -> Any:
    """Softmax of `scores` * `scale` up to each row's own position."""
    _half(3, scores)
    return _softmax("scaled_upper_triang_masked_softmax_warp_forward", scores)


def causal_backward(gradient: Any, result: Any, scale: Any) -> Any:
    """The gradient of the scores, in the place of `gradient`."""
    _half(3, gradient, result)
    check(gradient.shape[1] == gradient.shape[2], "output_grads.size(1) == output_grads.size(2)")
    gradient = gradient.contiguous()
    return _gradient("scaled_upper_triang_masked_softmax_warp_backward", gradient, result.contiguous(), gradient)


def masked_forward(scores: Any, mask: Any, scale: Any) -> Any:
    """Softmax of `scores` * `scale` where `mask`, bool[1 or batches, 1, queries, keys], is false."""
    _half(4, scores)
    check(mask.dim() == 4, "expected 4D tensor")
    check(scores.shape[2] > 1, "query_seq_len > 1")
    check(mask.shape[0] in (1, scores.shape[0]), "pad_batches == 1 || pad_batches == batches")
    check(tuple(mask.shape[1:]) == (1, *scores.shape[2:]), "mask.size(3) == key_seq_len")
    return _softmax("scaled_masked_softmax_warp_forward", scores)


def masked_backward(gradient: Any, result: Any, scale: Any) -> Any:
    """The gradient of the scores."""
    import torch

    _half(4, gradient, result)
    gradient = gradient.contiguous()
    made = torch.empty_like(gradient)
    return _gradient("scaled_masked_softmax_warp_backward", gradient, result.contiguous(), made)


def plain_forward(scores: Any, scale: Any) -> Any:
    """Softmax of `scores` * `scale`."""
    _half(4, scores)
    return _softmax("scaled_softmax_warp_forward", scores)


def plain_backward(gradient: Any, result: Any, scale: Any) -> Any:
    """The gradient of the scores, in the place of `gradient`."""
    _half(4, gradient, result)
    gradient = gradient.contiguous()
    return _gradient("scaled_masked_softmax_warp_backward", gradient, result.contiguous(), gradient)


def _half(dimensions: int, *tensors: Any) -> None:
    import torch

    for tensor in tensors:
        check(tensor.dim() == dimensions, f"expected {dimensions}D tensor")
        check(tensor.dtype in (torch.float16, torch.bfloat16), "Only fp16 and bf16 are supported")


def _blocks(scores: Any) -> int:
    keys = scores.shape[-1]
    check(keys <= LONGEST, f"key_seq_len <= {LONGEST}")
    rows = scores.numel() // max(1, keys)
    return -int(-rows // get_batch_per_block(1, keys, 1, 1))


def _softmax(kernel: str, scores: Any) -> Any:
    import torch

    blocks, made = _blocks(scores), torch.empty(scores.shape, dtype=scores.dtype, device=scores.device)
    operator("aten::_softmax", [scores, -1, False], lambda: launch(kernel, blocks, THREADS))
    return made


def _gradient(kernel: str, gradient: Any, result: Any, made: Any) -> Any:
    given = [gradient, result, -1, gradient.dtype]
    operator("aten::_softmax_backward_data", given, lambda: launch(kernel, _blocks(gradient), THREADS))
    return made

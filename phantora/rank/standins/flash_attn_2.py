"""Stand-in for ``flash_attn_2_cuda`` of flash-attn 2.

Its Python half calls these functions inside of operators, ``flash_attn::_flash_attn_forward`` and others, which have
the price (:mod:`phantora.cost.families.flash_attn`). Shapes, buffers and checks are those of flash_api.cpp (2.8.3).
"""

from __future__ import annotations

from typing import Any

from phantora.rank.standins.kernels import check, launch, operator, spec

ROWS = 128  # of queries that a block takes, and to which sequences are rounded
LARGEST_HEAD = 256


def _rounded(n: int, to: int) -> int:
    return -(-n // to) * to


def _checked(q: Any, k: Any, v: Any) -> None:
    import torch

    check(torch.cuda.get_device_capability()[0] >= 8, "FlashAttention only supports Ampere GPUs or newer.")
    check(q.dtype in (torch.float16, torch.bfloat16), "FlashAttention only support fp16 and bf16 data type")
    check(k.dtype == q.dtype and v.dtype == q.dtype, "query and key must have the same dtype")
    check(q.is_cuda and k.is_cuda and v.is_cuda, "q must be on CUDA")
    contiguous = all(t.stride(-1) == 1 for t in (q, k, v))
    check(contiguous, "Input tensor must have contiguous last dimension")
    head, heads, kv_heads = q.shape[-1], q.shape[-2], k.shape[-2]
    check(head <= LARGEST_HEAD, "FlashAttention forward only supports head dimension at most 256")
    check(head % 8 == 0, "query, key, value, and out_ must have a head_size that is a multiple of 8")
    check(heads % kv_heads == 0, "Number of heads in key/value must divide number of heads in query")
    check(
        k.shape[-1] == head and k.shape == v.shape, "k must have shape (batch_size, seqlen_k, num_heads_k, head_size)"
    )


def _floats(q: Any, *shape: int) -> Any:
    import torch

    return torch.empty(shape, dtype=torch.float32, device=q.device)


def _random_state(q: Any) -> Any:
    import torch

    return torch.empty(2, dtype=torch.int64, device=q.device)


def fwd(
    q: Any, k: Any, v: Any, out: Any, alibi_slopes: Any, dropout: float, scale: float, causal: bool, left: int,
    right: int, softcap: float, return_softmax: bool, generator: Any,
) -> list[Any]:  # fmt: skip
    """(batch, sequence, heads, head). Returns the result, its log-sum-exp, the scores if asked for, a random state."""
    import torch

    _checked(q, k, v)
    batch, queries, heads, _ = q.shape
    check(k.shape[0] == batch, "k must have shape (batch_size, seqlen_k, num_heads_k, head_size)")
    out = torch.empty_like(q) if out is None else out
    lse = _floats(q, batch, heads, queries)
    sides = (_rounded(queries, ROWS), _rounded(k.shape[1], ROWS)) if return_softmax and dropout > 0.0 else None
    scores = q.new_empty((batch, heads, *sides)) if sides else q.new_empty(0)
    state = _random_state(q)
    if k.shape[1] > 0:
        launch("flash_fwd_kernel", -(-queries // ROWS) * batch * heads)
    return [out, lse, scores, state]


def varlen_fwd(
    q: Any, k: Any, v: Any, out: Any, lengths_q: Any, lengths_k: Any, used: Any, left_padding: Any, table: Any,
    alibi_slopes: Any, longest_q: int, longest_k: int, dropout: float, scale: float, zero_tensors: bool, causal: bool,
    left: int, right: int, softcap: float, return_softmax: bool, generator: Any,
) -> list[Any]:  # fmt: skip
    """(tokens, heads, head), with the begins of sequences. Returns the same as :func:`fwd`."""
    import torch

    _checked(q, k, v)
    check(lengths_q.dtype == torch.int32, "cu_seqlens_q must have dtype int32")
    check(lengths_k.dtype == torch.int32, "cu_seqlens_k must have dtype int32")
    tokens, heads, _ = q.shape
    batch = lengths_q.numel() - 1
    out = torch.empty_like(q) if out is None else out
    lse, state = _floats(q, heads, tokens), _random_state(q)
    sides = (_rounded(longest_q, ROWS), _rounded(longest_k, ROWS)) if return_softmax and dropout > 0.0 else None
    scores = q.new_empty((batch, heads, *sides)) if sides else q.new_empty(0)
    if longest_k > 0:
        launch("flash_fwd_kernel", -(-longest_q // ROWS) * batch * heads)
    return [out, lse, scores, state]


def _backward(
    q: Any, k: Any, v: Any, dq: Any, dk: Any, dv: Any, rows: tuple[int, ...], blocks: tuple[int, int]
) -> list[Any]:
    """Gradients; `rows` are the extents of what is kept for each row of queries, without heads."""
    import torch

    heads, head, kv_heads = q.shape[-2], q.shape[-1], k.shape[-2]
    gradients = [torch.empty_like(t) if given is None else given for t, given in ((q, dq), (k, dk), (v, dv))]
    sums = _floats(q, *rows[:-1], heads, rows[-1])
    _accumulator = _floats(q, *rows, heads, _rounded(head, 32 if head <= 128 else 64))
    expanded = [k.new_empty((*k.shape[:-2], heads, head)) for _ in range(2)] if heads != kv_heads else []
    launch("flash_bwd_dot_do_o_kernel", blocks[0])
    launch("flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", blocks[1], 256)
    launch("flash_bwd_convert_dq_kernel", blocks[0])
    for gradient, each in zip(gradients[1:], expanded, strict=False):
        torch.sum(each.view(*k.shape[:-2], kv_heads, heads // kv_heads, head), dim=-2, out=gradient)
    return [*gradients, sums]


def bwd(
    dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, dq: Any, dk: Any, dv: Any, alibi_slopes: Any, dropout: float,
    scale: float, causal: bool, left: int, right: int, softcap: float, deterministic: bool, generator: Any, state: Any,
) -> list[Any]:  # fmt: skip
    """Returns the gradients of queries, keys and values, and the sums of rows of gradient times result."""
    _checked(q, k, v)
    batch, queries, heads, _ = q.shape
    rows = (batch, _rounded(queries, ROWS))
    blocks = tuple(-(-n // ROWS) * batch * heads for n in (queries, k.shape[1]))
    return _backward(q, k, v, dq, dk, dv, rows, (blocks[0], blocks[1]))


def varlen_bwd(
    dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, dq: Any, dk: Any, dv: Any, lengths_q: Any, lengths_k: Any,
    alibi_slopes: Any, longest_q: int, longest_k: int, dropout: float, scale: float, zero_tensors: bool, causal: bool,
    left: int, right: int, softcap: float, deterministic: bool, generator: Any, state: Any,
) -> list[Any]:  # fmt: skip
    """Backward pass of packed sequences."""
    _checked(q, k, v)
    tokens, heads, _ = q.shape
    batch = lengths_q.numel() - 1
    blocks = tuple(-(-n // ROWS) * batch * heads for n in (longest_q, longest_k))
    return _backward(q, k, v, dq, dk, dv, (tokens + ROWS * batch,), (blocks[0], blocks[1]))


def fwd_kvcache(
    q: Any, k_cache: Any, v_cache: Any, k: Any, v: Any, lengths: Any, cosines: Any, sines: Any, index: Any,
    left_padding: Any, table: Any, alibi_slopes: Any, out: Any, scale: float, causal: bool, left: int, right: int,
    softcap: float, interleaved: bool, splits: int,
) -> list[Any]:  # fmt: skip
    """Attention to a cache, of which all is taken for used: the lengths are on the GPU. Returns the result and its
    log-sum-exp. It is an operator here, since the Python half has none for it."""
    import torch

    _checked(q, k_cache, v_cache)
    batch, queries, heads, head = q.shape
    keys = k_cache.shape[1] if table is None else table.shape[1] * k_cache.shape[1]
    cached = spec(k_cache.dtype, batch, keys, k_cache.shape[2], head)
    given = [q, cached, cached, 0.0, scale, causal, left, right]
    out = torch.empty_like(q) if out is None else out
    blocks = -(-queries // ROWS) * batch * heads
    operator("flash_attn::_flash_attn_forward", given, lambda: launch("flash_fwd_splitkv_kernel", blocks))
    return [out, _floats(q, batch, heads, queries)]

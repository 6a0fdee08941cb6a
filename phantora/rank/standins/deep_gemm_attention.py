"""DeepGEMM's logits of an index of tokens (its attention kernels), of plain keys and of a cache in blocks.

How many keys each query has lies on the GPU: all are taken as used. Shapes and checks are those of csrc/apis (2.6).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phantora.rank.standins.deep_gemm_operands import TILE, asserted, padded, product
from phantora.rank.standins.kernels import check, launch, operator, spec

HEADS = {9: (32, 64), 10: (8, 16, 32, 64)}  # by the GPU's architecture
KEY_BLOCK = 256  # to which rows of logits are rounded
ROW_BYTES = 1024  # a multiple of which lies between rows of logits
SCALE_BYTES = 4  # behind each key of a cache


def _architecture() -> int:
    import torch

    found = torch.cuda.get_device_capability()[0]
    check(found in HEADS, "DeepGEMM: Unsupported architecture")
    return found


def _queries(q: Any, scales: Any) -> tuple[int, int]:
    """Heads and elements of a head; two elements of 4 bits are a byte."""
    import torch

    architecture = _architecture()
    heads, head = q.shape[-2], q.shape[-1] * (1 if scales is None else 2)
    asserted(heads in HEADS[architecture], "num_heads == 32 or num_heads == 64")
    asserted(head in ((32, 64, 128) if scales is None else (64, 128)), "head_dim == 64 or head_dim == 128")
    asserted(scales is None or architecture == 10, "arch_major == 10")
    kind = torch.float8_e4m3fn if scales is None else torch.int8
    asserted(q.dtype == kind and q.is_contiguous(), "q_fp.scalar_type() == torch::kFloat8_e4m3fn")
    return heads, head


def _weights(weights: Any, rows: int, heads: int, kind: Any) -> None:
    import torch

    asserted(tuple(weights.shape) == (rows, heads), "seq_len == _seq_len and num_heads == _num_heads")
    known = weights.dtype == torch.float32 or (_architecture() == 10 and weights.dtype == torch.bfloat16)
    asserted(known, "weights.scalar_type() == torch::kFloat")
    asserted(weights.dtype != torch.bfloat16 or kind == torch.bfloat16, "logits_dtype == torch::kBFloat16")


def _logits(name: str, q: Any, keys: Mapping[str, Any], rows: int, used: int, made: Any) -> None:
    """`q` is described as (batch, tokens, heads, head); of `made` (rows, more) `used` columns are written."""
    import torch

    blocks = torch.cuda.get_device_properties().multi_processor_count
    operator("deep_gemm::mqa_logits", [q, keys, spec(made.dtype, rows, used)], lambda: launch(name, blocks, 512))


def fp8_fp4_mqa_logits(
    q: Any, kv: Any, weights: Any, cu_seq_len_k_start: Any, cu_seq_len_k_end: Any, clean_logits: bool = True,
    max_seqlen_k: int = 0, logits_dtype: Any = None,
) -> Any:  # fmt: skip
    """`q` (tokens, heads, head) and keys (length, head), both with scales. Returns logits (tokens, length)."""
    import torch

    queries, scales = q
    keys, of_keys = kv
    kind = logits_dtype or torch.float32
    heads, head = _queries(queries, scales)
    tokens, length = queries.shape[0], keys.shape[0]
    asserted(keys.dim() == 2 and keys.shape[1] == queries.shape[2] and keys.is_contiguous(), "head_dim == _head_dim")
    asserted(tuple(of_keys.shape) == (length,), "seq_len_kv == _seq_len_kv")
    _weights(weights, tokens, heads, kind)
    for each in (cu_seq_len_k_start, cu_seq_len_k_end):
        asserted(each.shape[0] == tokens and each.dtype == torch.int32, "cu_seq_len_k_start.size(0) == seq_len")
    asserted(not (max_seqlen_k and clean_logits), "not clean_logits")
    step = ROW_BYTES // kind.itemsize
    rows = padded(tokens, TILE // heads)
    columns = padded(padded(max_seqlen_k, KEY_BLOCK) if max_seqlen_k else length + KEY_BLOCK, step)
    made = torch.empty((rows, columns), dtype=kind, device=queries.device)
    used = max_seqlen_k or length
    eight = torch.float8_e4m3fn
    asked, known = spec(eight, 1, tokens, heads, head), spec(eight, 1, used, head)
    _logits("mqa_logits", asked, known, tokens, used, made)
    if clean_logits:
        operator("aten::fill_", [spec(kind, 1), 0.0], lambda: launch("smxx_clean_logits", tokens, 256))
    return made[:tokens, :used]


def fp8_mqa_logits(q: Any, kv: Any, weights: Any, *rest: Any, **named: Any) -> Any:
    """:func:`fp8_fp4_mqa_logits` of queries without scales."""
    return fp8_fp4_mqa_logits((q, None), kv, weights, *rest, **named)


def get_paged_mqa_logits_metadata(context_lens: Any, block_kv: int, num_sms: int, indices: Any = None) -> Any:
    """What each SM computes."""
    import torch

    asserted(context_lens.dim() == 2, "context_lens.dim() == 2")
    asserted(context_lens.dtype == torch.int32, "context_lens.scalar_type() == torch::kInt")
    sizes = (64, 32) if _architecture() == 10 else (64,)
    asserted(block_kv in sizes, "block_kv == 64")
    made = torch.empty((num_sms + 1, 2), dtype=torch.int32, device=context_lens.device)
    operator("aten::add", [context_lens, 0], lambda: launch("paged_mqa_logits_metadata", 1, 32))
    return made


def fp8_fp4_paged_mqa_logits(
    q: Any, kv_cache: Any, weights: Any, context_lens: Any, block_table: Any, schedule_meta: Any, max_context_len: int,
    clean_logits: bool = False, logits_dtype: Any = None, indices: Any = None,
) -> Any:  # fmt: skip
    """`q` (sequences, tokens, heads, head) with scales, a cache (blocks, keys of a block, 1, bytes of a key). Returns
    logits (sequences * tokens, `max_context_len`)."""
    import torch

    queries, scales = q
    kind = logits_dtype or torch.float32
    heads, head = _queries(queries, scales)
    batch, tokens = queries.shape[:2]
    blocks = (32, 64) if _architecture() == 10 else (64,)
    asserted(kv_cache.dim() == 4 and kv_cache.shape[1] in blocks, "arch_major == 9 and block_kv == 64")
    asserted(tuple(kv_cache.shape[2:]) == (1, queries.shape[3] + SCALE_BYTES), "head_dim_with_sf == head_dim + 4")
    asserted(kv_cache.dtype == torch.uint8, "fused_kv_cache.scalar_type() == torch::kByte")
    _weights(weights, batch * tokens, heads, kind)
    asserted(block_table.shape[0] == batch and block_table.dtype == torch.int32, "_batch_size == batch_size")
    asserted(tuple(context_lens.shape) == (batch, tokens), "batch_size == __batch_size and next_n == _next_n")
    asserted(not clean_logits, "not is_context_lens_2d")
    columns = padded(padded(max_context_len, KEY_BLOCK), ROW_BYTES // kind.itemsize)
    made = torch.empty((batch * tokens, columns), dtype=kind, device=queries.device)
    eight = torch.float8_e4m3fn
    asked, known = spec(eight, batch, tokens, heads, head), spec(eight, batch, max_context_len, head)
    _logits("paged_mqa_logits", asked, known, batch * tokens, max_context_len, made)
    return made[:, :max_context_len]


def fp8_paged_mqa_logits(q: Any, kv_cache: Any, weights: Any, *rest: Any, **named: Any) -> Any:
    """:func:`fp8_fp4_paged_mqa_logits` of queries without scales."""
    context, blocks, schedule, longest, *further = rest
    names = dict(zip(("clean_logits", "indices"), further, strict=False))
    return fp8_fp4_paged_mqa_logits((q, None), kv_cache, weights, context, blocks, schedule, longest, **names, **named)


def fp8_gemm_nt_skip_head_mid(
    a: Any, b: Any, d: Any, head_splits: tuple[int, int, int], *rest: Any, **named: Any
) -> None:
    """A product whose columns are parts of heads: in `d` there is room between the left and the right part."""
    (m, k), (n, deep) = a[0].shape, b[0].shape
    left, middle, right = head_splits
    asserted(k == deep, "m == m_ and k == k_")
    wide = n + n // (left + right) * middle
    asserted(n % (left + right) == 0 and tuple(d.shape) == (m, wide), "n_ == n + n / (left + right) * mid")
    if m:
        product("aten::_scaled_mm", a[0], b[0].t(), (a[1], b[1]), m, n)

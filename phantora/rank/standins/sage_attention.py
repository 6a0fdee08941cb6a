"""Stand-ins for ``_qattn_sm80``, ``_qattn_sm89``, ``_qattn_sm90`` and ``_fused`` of sageattention 2.

Attention has the price of FlashAttention-3 in 8 bits, and what quantises is priced by the bytes of its tensors. Shapes
and checks are those of csrc (2.2).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phantora.rank.standins.flash_attn_2 import ROWS
from phantora.rank.standins.kernels import check, launch, operator, spec

HEADS = (64, 128)
ATTENTION = tuple(
    f"qk_int8_sv_{rest}"
    for rest in (
        *("f16_accum_f32_attn", "f16_accum_f16_attn", "f16_accum_f16_attn_inst_buf"),
        *("f16_accum_f16_fuse_v_mean_attn", "f8_accum_f32_attn", "f8_accum_f32_attn_inst_buf"),
        *("f8_accum_f16_attn_inst_buf", "f8_accum_f32_fuse_v_scale_attn", "f8_accum_f32_fuse_v_scale_attn_inst_buf"),
        *("f8_accum_f16_fuse_v_scale_attn_inst_buf", "f8_accum_f32_fuse_v_scale_fuse_v_mean_attn"),
    )
)
FUSED = (
    *("quant_per_block_int8_cuda", "quant_per_block_int8_fuse_sub_mean_cuda", "quant_per_warp_int8_cuda"),
    *("sub_mean_cuda", "transpose_pad_permute_cuda", "scale_fuse_quant_cuda", "mean_scale_fuse_quant_cuda"),
)


def _attention(name: str) -> Callable[..., Any]:
    def attention(query: Any, key: Any, value: Any, output: Any, *rest: Any) -> Any:
        """Queries and keys of 8 bits, (batch, sequence, heads, head) or (batch, heads, sequence, head). The result goes
        into `output`; returned are log-sum-exps, empty if they are not asked for."""
        import torch

        layout, causal, _, _, wanted = rest[-5:]
        check(query.is_cuda and key.is_cuda and value.is_cuda, "Tensor query must be on CUDA")
        check(query.dtype == torch.int8 and key.dtype == torch.int8, "Tensor query must have dtype int8")
        check(query.shape[-1] in HEADS, f"Unsupported head dim: {query.shape[-1]}")
        check(query.shape == output.shape, "output must have the shape of query")
        sequence, heads = (1, 2) if layout == 0 else (2, 1)
        counts = query.shape[heads], key.shape[heads]
        check(counts[0] % counts[1] == 0, f"num_qo_heads ({counts[0]}) must be divisible by num_kv_heads ({counts[1]})")
        batch, queries, head = query.shape[0], query.shape[sequence], query.shape[-1]
        eight = torch.float8_e4m3fn
        q, kv = (spec(eight, batch, t.shape[sequence], t.shape[heads], head) for t in (query, key))
        given = [q, kv, kv, *([None] * 20), 0.0, bool(causal), -1, -1]
        blocks = -(-queries // ROWS) * batch * counts[0]
        operator("flash_attn_3::_flash_attn_forward", given, lambda: launch(name, blocks))
        made = (batch, counts[0], queries) if wanted else (0,)
        return torch.empty(made, dtype=torch.float32, device=query.device)

    return attention


def _pass(name: str) -> Callable[..., None]:
    def quantised(x: Any, *rest: Any) -> None:
        """Reads `x`, writes the other tensors."""
        check(x.is_cuda, "Tensor input must be on CUDA")
        operator(f"sageattention::{name}", [x, *rest], lambda: launch(name, -(-x.numel() // 8192)))

    return quantised


def exported() -> dict[str, Callable[..., Any]]:
    """The functions of all four modules by name."""
    return {name: _attention(name) for name in ATTENTION} | {name: _pass(name) for name in FUSED}

"""Layers in place of Transformer Engine's for Megatron-Core's local layers, as users without it write them.

Megatron-Core's own core attention writes the whole attention matrix to memory and has no context
parallelism; its own norm refuses sequence parallelism.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.tensor_parallel import layers
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.nn.attention.bias import causal_lower_right


class RMSNorm(torch.nn.RMSNorm):
    """Its gradient is summed over the tensor parallel ranks where each sees a part of the sequence."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__(hidden_size, eps)
        self.weight.sequence_parallel = config.sequence_parallel


class SDPACoreAttention(torch.nn.Module):
    """Causal attention; query, key and value are [sequence, batch, heads, head_dim].

    Under context parallelism rank r of n has chunks r and 2n-1-r of 2n. Keys and values are
    gathered (backward: reduce-scatter), and each chunk of queries sees the keys up to its end.
    """

    def __init__(self, *, pg_collection: Any, **_: Any) -> None:
        super().__init__()
        self.cp_group = pg_collection.cp

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor | None, **_: Any
    ) -> torch.Tensor:
        ranks, me = self.cp_group.size(), self.cp_group.rank()
        if ranks == 1:
            return _rows(_attend(query, key, value))
        keys, values = (
            _in_order(gather_from_sequence_parallel_region(t, group=self.cp_group), ranks) for t in (key, value)
        )
        chunk = query.size(0) // 2
        parts = []
        for queries, index in zip(query.split(chunk), (me, 2 * ranks - 1 - me), strict=True):
            end = (index + 1) * chunk
            parts.append(_attend(queries, keys[:end], values[:end]))
        return _rows(torch.cat(parts))


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    q, k, v = (t.permute(1, 2, 0, 3) for t in (query, key, value))
    grouped = q.size(1) != k.size(1)
    if q.size(2) == k.size(2):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
    else:
        if grouped:  # a bias object takes no enable_gqa
            k, v = (t.repeat_interleave(q.size(1) // t.size(1), dim=1) for t in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, causal_lower_right(q.size(2), k.size(2)))
    return out.permute(2, 0, 1, 3)


def _rows(out: torch.Tensor) -> torch.Tensor:
    return out.reshape(out.size(0), out.size(1), -1)


def _in_order(gathered: torch.Tensor, ranks: int) -> torch.Tensor:
    """Chunks as the ranks hold them (0, 2n-1, 1, 2n-2, ...) in the order of the sequence."""
    chunks = gathered.chunk(2 * ranks)
    return torch.cat([*chunks[0::2], *chunks[1::2][::-1]])


def engine_spec(config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
    """Transformer Engine's layers of a pipeline stage, as Megatron-LM has them by default."""
    if config.num_moe_experts and moe_utils.te_general_gemm is None:
        from transformer_engine.pytorch.cpp_extensions import general_gemm

        moe_utils.te_general_gemm = general_gemm  # Megatron-Core 0.16 imports it with a name that 2.20 does not have
    return get_gpt_decoder_block_spec(config, use_transformer_engine=True, normalization="RMSNorm", vp_stage=vp_stage)


def add_gradients_in_products() -> None:
    """Lets the output layer add its gradient to the main one inside of the product, as other layers do.

    Megatron-Core asks for Apex's extension there; Transformer Engine's product takes its place.
    """
    from transformer_engine.pytorch.cpp_extensions import general_gemm

    class Products:
        @staticmethod
        def wgrad_gemm_accum_fp32(given: torch.Tensor, gradient: torch.Tensor, main: torch.Tensor) -> None:
            general_gemm(given, gradient, out_dtype=main.dtype, layout="NT", out=main, accumulate=True, grad=True)

    if not layers._grad_accum_fusion_available:
        layers.fused_weight_gradient_mlp_cuda, layers._grad_accum_fusion_available = Products, True


def local_spec(config: TransformerConfig, vp_stage: int | None, sdpa: bool) -> TransformerBlockSubmodules:
    """Megatron-Core's local layers of a pipeline stage with the modules above."""
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm", vp_stage=vp_stage)
    spec.layer_norm = RMSNorm
    if config.num_moe_experts and not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None  # Megatron-Core 0.16 forgets it where Transformer Engine is missing
    for layer in spec.layer_specs:
        _adapt(layer, config, sdpa)
    return spec


def _adapt(layer: ModuleSpec, config: TransformerConfig, sdpa: bool) -> None:
    parts = layer.submodules
    attention = parts.self_attention.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = RMSNorm
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    if sdpa:
        attention.core_attention = SDPACoreAttention

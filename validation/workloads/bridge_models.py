"""The models of Megatron-Bridge's performance recipes: their sizes, and settings of Megatron-Core next to them."""

from __future__ import annotations

from typing import Any

from megatron.core.activations import squared_relu
from megatron.core.fusions.fused_bias_geglu import quick_gelu
from megatron.core.quantization.quant_config import GlobMatcher, RecipeConfig

from megatron_shapes import SHAPES, Shape

SHAPES["qwen3-235b-a22b"] = Shape(
    94, 4096, 1536, 64, 4, 151936, 4096, 1_000_000, experts=128, top_k=8, qk_norm=True
)
SHAPES["gpt-oss-120b"] = Shape(36, 2880, 2880, 64, 8, 201088, 4096, 150_000, head_dim=64, experts=128, top_k=4)
SHAPES["gpt-oss-20b"] = Shape(24, 2880, 2880, 64, 8, 201088, 8192, 150_000, head_dim=64, experts=32, top_k=4)
SHAPES["deepseek-v3"] = Shape(61, 7168, 2048, 128, 128, 129280, 4096, experts=256, top_k=8)
SHAPES["nemotron-3-nano"] = Shape(
    52, 2688, 1856, 32, 2, 131072, 8192, experts=128, top_k=6, gated=False
)
SHAPES["nemotron-3-super"] = Shape(
    88, 4096, 2688, 32, 2, 131072, 8192, experts=512, top_k=22, gated=False
)
SHAPES["nemotron-3.5-lightning"] = SHAPES["nemotron-3-nano"]
SHAPES["kimi-k2"] = Shape(61, 7168, 2048, 64, 64, 163840, 4096, experts=384, top_k=8)

EXPERTS: dict[str, Any] = {
    "moe_router_fusion": True, "moe_permute_fusion": True, "moe_router_dtype": "fp32",
    "moe_router_force_load_balancing": True, "moe_aux_loss_coeff": 1e-3, "moe_hybridep_num_sms": 32,
}
"""Of all recipes with experts."""
LATENT: dict[str, Any] = {
    "multi_latent_attention": True, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64, "v_head_dim": 128, "qk_layernorm": True, "rope_type": "yarn",
    "ffn_hidden_size": 18432, "moe_shared_expert_intermediate_size": 2048, "moe_router_score_function": "sigmoid",
    "moe_router_enable_expert_bias": True, "moe_router_load_balancing_type": "seq_aux_loss",
    "moe_aux_loss_coeff": 1e-4,
}
"""Multi-head latent attention, dense first layers and a shared expert, as DeepSeek-V3 has them."""
MAMBA: dict[str, Any] = {
    "is_hybrid_model": True, "mamba_head_dim": 64, "mamba_state_dim": 128, "mamba_num_groups": 8,
    "activation_func": squared_relu, "use_fused_weighted_squared_relu": True, "bias_activation_fusion": False,
    "apply_rope_fusion": False, "moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True,
    "moe_router_load_balancing_type": "seq_aux_loss", "moe_aux_loss_coeff": 1e-4, "moe_router_topk_scaling_factor": 2.5,
    "moe_router_fusion": False,
}
"""Mamba 2 and experts without gates, as Nemotron 3 has them. Its recipes do not fuse the router."""
PATTERNS = {
    "nemotron-3-nano": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "nemotron-3-super": "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
}
"""Layers of hybrid models: Mamba (M), experts (E) or attention (*)."""
PATTERNS["nemotron-3.5-lightning"] = PATTERNS["nemotron-3-nano"]
NANO = MAMBA | {"mamba_num_heads": 64, "moe_shared_expert_intermediate_size": 3712}
GPT_OSS: dict[str, Any] = {
    "moe_aux_loss_coeff": 0.0, "moe_router_dtype": None, "activation_func": quick_gelu,
    "activation_func_clamp_value": 7.0, "glu_linear_offset": 1.0,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "nemotron-3-nano": NANO, "nemotron-3.5-lightning": NANO | {"mtp_num_layers": 2},
    "nemotron-3-super": MAMBA | {
        "mamba_num_heads": 128, "moe_shared_expert_intermediate_size": 5376, "moe_latent_size": 1024,
        "mtp_num_layers": 2,
    },
    "deepseek-v3": LATENT | {"dense": 3}, "kimi-k2": LATENT | {"dense": 1},
    "gpt-oss-120b": GPT_OSS, "gpt-oss-20b": GPT_OSS,
    "gpt3-175b": {"bias_activation_fusion": False},  # it wants biases, which linear layers here do not have
}
"""Of one model; `dense`: first layers without experts."""
MIXED = {"nemotron-3-super"}
"""Hybrid models whose recipes in NVFP4 give single layers of the decoder another precision."""
BF16_AT_THE_END = 14
"""Layers that a recipe in NVFP4 leaves in bfloat16."""
WINDOWS = {"gpt-oss-120b": 128, "gpt-oss-20b": 128}
"""Tokens that every second layer attends to."""
BIASED = {"gpt-oss-120b", "gpt-oss-20b"}
"""Models whose experts have biases."""


def precisions(name: str, layers: int, precision: str) -> RecipeConfig:
    """Of the linear layers of a hybrid model, first match first, as te_quant.cfg of Megatron-Bridge gives them.

    Megatron-Core's stack of Mamba layers enters no context of NVFP4, so each layer asks for it.
    """
    kept = ["mtp.*"]
    mixed = precision == "nvfp4" and name in MIXED
    if mixed:
        last = range(max(0, layers - BF16_AT_THE_END), layers)
        kept += ["*.linear_qkv", "*.linear_proj", "*mlp.fc[12]_latent_proj", *(f"decoder.layers.{i}.*" for i in last)]
    matchers = [GlobMatcher(pattern, "bf16") for pattern in kept]
    if mixed:
        matchers.append(GlobMatcher("*mixer.out_proj", "mxfp8"))
    if precision == "nvfp4":
        matchers.append(GlobMatcher("decoder.layers.*", "nvfp4"))
    wanted: dict[str, dict[str, Any]] = {
        "bf16": {}, "mxfp8": {"fp8_quantization_recipe": "mxfp8", "override_nonquantized_autocast": True},
        "nvfp4": {"fp4_quantization_recipe": "nvfp4", "override_nonquantized_autocast": True},
    }
    kind = {"transformer_engine_config_type": "TEQuantizationParams"}
    return RecipeConfig(matchers, {name: kind | {"training_recipe": made} for name, made in wanted.items()})

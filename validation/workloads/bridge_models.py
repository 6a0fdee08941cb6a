"""The models of Megatron-Bridge's performance recipes: their sizes, and settings of Megatron-Core next to them."""

from __future__ import annotations

from typing import Any

from megatron_shapes import SHAPES, Shape

SHAPES["qwen3-235b-a22b"] = Shape(
    94, 4096, 1536, 64, 4, 151936, 4096, 1_000_000, experts=128, top_k=8, qk_norm=True
)  # fmt: skip

EXPERTS: dict[str, Any] = {
    "moe_router_fusion": True, "moe_permute_fusion": True, "moe_router_dtype": "fp32",
    "moe_router_force_load_balancing": True, "moe_aux_loss_coeff": 1e-3, "moe_hybridep_num_sms": 32,
}  # fmt: skip
"""Of all recipes with experts."""

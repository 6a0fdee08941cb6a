"""Fine-tuning: packed sequences, and low-rank adapters next to frozen weights.

`sft` and `lora` are those of Megatron-Bridge's recipes. `adapters` is that of MLPerf's Llama 2 70B: tokens attend to all
earlier ones of a sequence, and both of attention's linear layers have adapters with dropout (`--lora_dropout 0.1` of
mlcommons/training, llama2_70b_lora).
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.transformer_config import TransformerConfig

from megatron_layers import SDPACoreAttention
from validation.workloads.narrow_layers import NarrowColumn, NarrowRow

SAMPLE = 256
"""Tokens of a packed sample. Those of the recipes' data (SQuAD) have 206, weighted by tokens: a tile of attention."""
RANK, SCALE = 16, 2.0
"""Of an adapter."""
DROPOUT = 0.1
"""Of the inputs of `adapters`."""
SETTINGS: dict[str, dict[str, Any]] = {
    "sft": {"defer_embedding_wgrad_compute": True, "wgrad_deferral_limit": 22},
    "lora": {"cross_entropy_loss_fusion": False},
}
"""Of the configuration, by kind of fine-tuning."""


class PackedAttention(SDPACoreAttention):
    """Tokens attend to those of their own sample; query, key and value are [sequence, batch, heads, head_dim]."""

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor | None,
        **_: Any,
    ) -> torch.Tensor:
        samples, batch = query.size(0) // SAMPLE, query.size(1)
        parts = (t.unflatten(0, (samples, SAMPLE)).transpose(0, 1).flatten(1, 2) for t in (query, key, value))
        out = super().forward(*parts, attention_mask)
        return out.unflatten(1, (samples, batch)).transpose(0, 1).flatten(0, 1)


class AdaptedColumn(NarrowColumn):
    """Adds the product with two thin matrices in bfloat16."""

    dropout = 0.0

    def __init__(self, input_size: int, output_size: int, *, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(input_size, output_size, config=config, **kwargs)
        alone = copy.copy(config)
        alone.sequence_parallel = False  # the adapter gets all tokens
        thin: dict[str, Any] = {"config": alone, "init_method": config.init_method, "bias": False}
        self.adapter = torch.nn.Sequential(
            ColumnParallelLinear(input_size, RANK, gather_output=True, **thin),
            ColumnParallelLinear(RANK, output_size, gather_output=False, **thin),
        )

    def forward(self, input_: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
        out, bias = super().forward(input_, *args, **kwargs)
        if self.config.sequence_parallel:
            input_ = gather_from_sequence_parallel_region(input_, group=self.tp_group)
        if self.dropout:
            input_ = F.dropout(input_, self.dropout)
        for layer in self.adapter:
            input_, _ = layer(input_)
        return out + input_ * SCALE, bias


class DroppedColumn(AdaptedColumn):
    """With dropout."""

    dropout = DROPOUT


class AdaptedRow(NarrowRow):
    """Adds the product with two thin matrices in bfloat16 to that of a row-parallel layer, with dropout."""

    def __init__(self, input_size: int, output_size: int, *, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(input_size, output_size, config=config, **kwargs)
        self.adapter = torch.nn.ModuleList([
            RowParallelLinear(
                input_size, RANK, config=config, init_method=config.init_method, bias=False, input_is_parallel=True,
                skip_bias_add=True,
            ),
            torch.nn.Linear(RANK, output_size, bias=False, device="cuda", dtype=config.params_dtype),
        ])
        weight: Any = self.adapter[1].weight
        weight.sequence_parallel = config.sequence_parallel

    def forward(self, input_: torch.Tensor) -> tuple[torch.Tensor, None]:
        out, bias = super().forward(input_)
        low, _ = self.adapter[0](F.dropout(input_, DROPOUT))
        return out + self.adapter[1](low) * SCALE, bias


def freeze(model: torch.nn.Module) -> None:
    """All but the adapters."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad = ".adapter." in name

"""The adapters of validation/workloads/finetune.py next to Transformer Engine's layers, as NeMo's LoRA has them.

A column-parallel layer gives its normalised input, which the adapter reads. Tensor parallelism has no adapter here.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from validation.workloads.finetune import DROPOUT, RANK, SCALE, freeze


class Adapted(torch.nn.Module):
    """Adds the product of an input [.., columns] with two thin matrices in bfloat16 to that of a linear layer."""

    def __init__(self, layer: Any, columns: int, rows: int) -> None:
        super().__init__()
        self.layer = layer
        self.normalises = hasattr(layer, "return_layernorm_output")
        if self.normalises:
            layer.return_layernorm_output = True
        thin: dict[str, Any] = {"bias": False, "device": "cuda", "dtype": torch.bfloat16}
        self.adapter = torch.nn.Sequential(torch.nn.Linear(columns, RANK, **thin), torch.nn.Linear(RANK, rows, **thin))

    def forward(self, given: torch.Tensor) -> tuple[torch.Tensor, None]:
        out, _ = self.layer(given)
        if self.normalises:
            out, given = out
        return out + self.adapter(F.dropout(given, DROPOUT)) * SCALE, None

    def backward_dw(self) -> None:
        self.layer.backward_dw()


def adapt(model: Any) -> None:
    """Both linear layers of all attention get adapters, everything else is frozen."""
    for layer in model.decoder.layers:
        attention = layer.self_attention
        for name in ("linear_qkv", "linear_proj"):
            linear = getattr(attention, name)
            setattr(attention, name, Adapted(linear, linear.in_features, linear.out_features))
    freeze(model)

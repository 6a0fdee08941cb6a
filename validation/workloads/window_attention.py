"""Attention of the last `WindowAttention.window` tokens, for its time only: in blocks of twice as many tokens.

A causal block of 2w tokens has as many scores as 2w tokens with windows of w. Values are not those of a training.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


class WindowAttention(torch.nn.Module):
    """Query, key and value are [sequence, batch, heads, head_dim]; the output is [sequence, batch, heads * head_dim]."""

    window = 0

    def __init__(self, **_: Any) -> None:
        super().__init__()

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor | None,
        **_: Any,
    ) -> torch.Tensor:  # fmt: skip
        blocks = query.size(0) // (2 * self.window)
        q, k, v = (
            each.view(blocks, -1, *each.shape[1:]).permute(0, 2, 3, 1, 4).flatten(0, 1)
            for each in (query, key, value)
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.size(1) != k.size(1))
        return out.transpose(1, 2).reshape(query.size(0), query.size(1), -1)

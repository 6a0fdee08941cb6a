"""Attention of the last `window` tokens, for its time only: in blocks of twice the window.

cuDNN computes tiles of 128 queries and keys: those of a window of 128 are two for each row of tiles, as in a block of
256 tokens without a mask. Sequences and blocks change places, so nothing is copied. Values are not those of a training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F


class CoreAttention(torch.nn.Module, ABC):
    """Query, key and value are [sequence, batch, heads, head_dim]; the output is [sequence, batch, heads * head_dim]."""

    window = 0
    """Tokens that a token attends to; 0: all."""

    def __init__(self, **_: Any) -> None:
        super().__init__()

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor | None,
        **_: Any,
    ) -> torch.Tensor:
        return self.attend(query, key, value)

    @abstractmethod
    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """The output for one layer."""


class WindowAttention(CoreAttention):
    """Attention in blocks of twice the window."""

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        q, k, v = (each.reshape(-1, 2 * self.window, *each.shape[2:]).transpose(1, 2) for each in (query, key, value))
        out = F.scaled_dot_product_attention(q, k, v, enable_gqa=q.size(1) != k.size(1))
        return out.transpose(1, 2).reshape(query.size(0), query.size(1), -1)

"""Layers of language models that several programs have: a projection of q, k and v, attention and an MLP, norms first."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """torch's attention of each position to those before it; tensors are (batch, heads, length, width of a head)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def silu_gate(gate: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Llama's gate."""
    return F.silu(gate) * x


class Attended(nn.Module):
    """Attention by `attend` in a residual; the MLP is a subclass's."""

    def __init__(self, width: int, heads: int, attend: Attention, norm: Callable[[int], nn.Module], bias: bool) -> None:
        super().__init__()
        self.heads, self.attend = heads, attend
        self.n1, self.n2 = norm(width), norm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias), nn.Linear(width, width, bias)

    def attended(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (t.reshape(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1))
        return x + self.out(self.attend(q, k, v).transpose(1, 2).reshape(batch, length, width))


class Block(Attended):
    """GPT's: an MLP of four times the width with GELU."""

    def __init__(
        self, width: int, heads: int, attend: Attention = causal, norm: Callable[[int], nn.Module] = nn.LayerNorm,
        bias: bool = True,
    ) -> None:
        super().__init__(width, heads, attend, norm, bias)
        self.up, self.down = nn.Linear(width, 4 * width, bias), nn.Linear(4 * width, width, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attended(x)
        return x + self.down(F.gelu(self.up(self.n2(x))))


class GatedBlock(Attended):
    """Llama's: an MLP of `inner` words with `gate`, no biases."""

    def __init__(
        self, width: int, heads: int, inner: int, attend: Attention = causal,
        norm: Callable[[int], nn.Module] = nn.RMSNorm, gate: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = silu_gate,
    ) -> None:
        super().__init__(width, heads, attend, norm, bias=False)
        self.gate_by = gate
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attended(x)
        h = self.n2(x)
        return x + self.down(self.gate_by(self.gate(h), self.up(h)))

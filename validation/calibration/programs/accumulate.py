"""Gradient accumulation with checkpointed layers, a custom autograd function and dropout; AdamW fused."""
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from validation.calibration.programs.common import Step, main


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = F.relu(x)
        ctx.save_for_backward(y)
        return y * y

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (y,) = ctx.saved_tensors
        return 2 * grad * y


class Layer(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.token, self.up, self.down = nn.Linear(dim, dim), nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        h = torch.sigmoid(self.token(h)) * h.roll(1, 1)
        return x + F.dropout(self.down(Squared.apply(self.up(h))), 0.1)


def build(layers: int, dim: int, batch: int, seq: int, accumulate: int) -> Step:
    model = nn.ModuleList(Layer(dim) for _ in range(layers)).cuda().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(batch, seq, dim, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        for _ in range(accumulate):
            h = x
            for layer in model:
                h = checkpoint(layer, h, use_reentrant=False)
            (h.float().pow(2).mean() / accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


main("accumulate", build, {
    "base": dict(layers=6, dim=256, batch=4, seq=128, accumulate=2), "deep": dict(layers=16, dim=256, batch=4, seq=128, accumulate=2),
    "many": dict(layers=6, dim=256, batch=4, seq=128, accumulate=6), "wide": dict(layers=4, dim=768, batch=8, seq=256, accumulate=2),
})

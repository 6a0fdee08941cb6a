"""Six MLPs compiled with max-autotune: each product is whatever Inductor's tuning chose."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from steps import timed

WIDTH, INNER, LAYERS, TOKENS = 2560, 10240, 6, 8192


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


torch.manual_seed(0)
torch.set_default_device("cuda")
model = nn.Sequential(*(Layer() for _ in range(LAYERS))).bfloat16()
for layer in model:
    layer.compile(mode="max-autotune-no-cudagraphs")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
x = torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16)


def step() -> None:
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


timed("tuned_mlp", step)

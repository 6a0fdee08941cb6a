"""Six gated MLPs whose products are torchao's float8 (one scale a tensor), compiled."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torchao.float8 import convert_to_float8_training

from steps import timed

WIDTH, INNER, LAYERS, TOKENS = 4096, 11008, 6, 8192


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.gate, self.up = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x):
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


torch.manual_seed(0)
torch.set_default_device("cuda")
model = nn.Sequential(*(Layer() for _ in range(LAYERS))).bfloat16()
convert_to_float8_training(model)
for layer in model:
    layer.compile()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
x = torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16)


def step() -> None:
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


timed("float8_mlp", step)

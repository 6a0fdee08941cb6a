"""Six MLPs trained with torchao's int8 mixed precision: scales by row, products in int8, compiled."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from steps import timed
from torchao import quantize_
from torchao.prototype.quantized_training import int8_mixed_precision_training

WIDTH, INNER, LAYERS, TOKENS = 4096, 16384, 6, 8192


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


torch.manual_seed(0)
torch.set_default_device("cuda")
model = nn.Sequential(*(Layer() for _ in range(LAYERS))).bfloat16()
quantize_(model, int8_mixed_precision_training(), set_inductor_config=False)
for layer in model:
    layer.compile()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
x = torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16)


def step() -> None:
    model(x).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


timed("int8_mlp", step)

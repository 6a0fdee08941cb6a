"""A Llama of 8 layers whose norms, positions, gates and loss are Liger's Triton kernels."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from liger_kernel.ops import (
    LigerFusedLinearCrossEntropyFunction,
    LigerRMSNormFunction,
    LigerRopeFunction,
    LigerSiLUMulFunction,
)

from steps import timed

WIDTH, HEADS, INNER, LAYERS, WORDS, BATCH, LENGTH = 2048, 16, 5632, 8, 32000, 4, 2048


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return LigerRMSNormFunction.apply(x, self.weight, 1e-6, 0.0, "llama", False)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = Norm(), Norm()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        q, k, v = (t.reshape(BATCH, LENGTH, HEADS, -1).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1))
        q, k = LigerRopeFunction.apply(q, k, cos, sin)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        h = self.n2(x)
        return x + self.down(LigerSiLUMulFunction.apply(self.gate(h), self.up(h)))


torch.manual_seed(0)
torch.set_default_device("cuda")
embed = nn.Embedding(WORDS, WIDTH, dtype=torch.bfloat16)
layers = nn.ModuleList(Layer() for _ in range(LAYERS)).bfloat16()
last, head = Norm().bfloat16(), nn.Linear(WIDTH, WORDS, bias=False, dtype=torch.bfloat16)
parameters = [p for m in (embed, layers, last, head) for p in m.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
ids = torch.randint(0, WORDS, (BATCH, LENGTH))
angles = torch.outer(torch.arange(LENGTH).float(), 1e4 ** -(torch.arange(0, 128, 2).float() / 128)).repeat(1, 2)
cos, sin = angles.cos().bfloat16()[None], angles.sin().bfloat16()[None]


def step() -> None:
    x = embed(ids)
    for layer in layers:
        x = layer(x, cos, sin)
    loss = LigerFusedLinearCrossEntropyFunction.apply(last(x).view(-1, WIDTH), head.weight, ids.view(-1))[0]
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


timed("liger_llama", step)

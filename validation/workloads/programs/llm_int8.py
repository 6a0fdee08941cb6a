"""LoRA on frozen int8 layers of bitsandbytes (LLM.int8, no outliers kept apart): 6 layers."""

import bitsandbytes as bnb
import torch
import torch.nn as nn
import torch.nn.functional as F

from steps import timed

WIDTH, HEADS, INNER, LAYERS, BATCH, LENGTH, LOW = 2560, 20, 6912, 6, 16, 1024, 16


class Adapted(nn.Module):
    def __init__(self, n: int, m: int) -> None:
        super().__init__()
        self.frozen = bnb.nn.Linear8bitLt(n, m, bias=False, has_fp16_weights=False, threshold=0.0)
        self.a = nn.Parameter(torch.randn(LOW, n, dtype=torch.bfloat16) * 0.01)
        self.b = nn.Parameter(torch.zeros(m, LOW, dtype=torch.bfloat16))

    def forward(self, x):
        return self.frozen(x).to(x.dtype) + F.linear(F.linear(x, self.a), self.b)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(WIDTH, dtype=torch.bfloat16), nn.RMSNorm(WIDTH, dtype=torch.bfloat16)
        self.qkv, self.out = Adapted(WIDTH, 3 * WIDTH), Adapted(WIDTH, WIDTH)
        self.up, self.down = Adapted(WIDTH, 2 * INNER), Adapted(INNER, WIDTH)

    def forward(self, x):
        q, k, v = (t.reshape(BATCH, LENGTH, HEADS, -1).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        a, b = self.up(self.n2(x)).chunk(2, -1)
        return x + self.down(F.silu(a) * b)


torch.manual_seed(0)
model = nn.Sequential(*(Layer() for _ in range(LAYERS))).cuda()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)
x = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.bfloat16, device="cuda", requires_grad=True)


def step() -> None:
    model(x).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


timed("llm_int8", step)

"""Eight Llama layers with bitsandbytes' 4-bit weights and LoRA's adapters; only these are trained."""

import bitsandbytes as bnb
import torch
import torch.nn as nn
import torch.nn.functional as F

from steps import timed

WIDTH, HEADS, INNER, LAYERS, RANK, WORDS, BATCH, LENGTH = 4096, 32, 11008, 8, 16, 32000, 2, 2048


class Adapted(nn.Module):
    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.base = bnb.nn.Linear4bit(into, out, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4")
        self.a, self.b = nn.Linear(into, RANK, bias=False), nn.Linear(RANK, out, bias=False)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k, self.v, self.o = (Adapted(WIDTH, WIDTH) for _ in range(4))
        self.gate, self.up, self.down = Adapted(WIDTH, INNER), Adapted(WIDTH, INNER), Adapted(INNER, WIDTH)

    def forward(self, x):
        h = self.n1(x)
        q, k, v = (w(h).view(BATCH, LENGTH, HEADS, -1).transpose(1, 2) for w in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


torch.manual_seed(0)
embed, head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
model = nn.ModuleList([embed, head])
for _ in range(LAYERS):  # weights are packed when they come to the GPU
    model.append(Layer().bfloat16().cuda())
model[:2].bfloat16().cuda()
trained = []
for name, parameter in model.named_parameters():
    parameter.requires_grad_(name.endswith(("a.weight", "b.weight")) and parameter.is_floating_point())
    if parameter.requires_grad:
        trained.append(parameter)
optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
ids = torch.randint(0, WORDS, (BATCH, LENGTH), device="cuda")


def step() -> None:
    x = embed(ids)
    for layer in model[2:]:
        x = layer(x)
    F.cross_entropy(head(x).view(-1, WORDS), ids.view(-1)).backward()
    optimizer.step()
    optimizer.zero_grad()


timed("qlora", step)

"""A mixture of experts as tutorials write it: 6 layers, 8 experts, two a token, a loop over experts with nonzero()."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from steps import timed

WIDTH, INNER, HEADS, LAYERS, EXPERTS, WORDS, BATCH, LENGTH = 2048, 4096, 16, 6, 8, 32000, 4, 2048


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, INNER, bias=False), nn.GELU(), nn.Linear(INNER, WIDTH, bias=False))
            for _ in range(EXPERTS)
        )

    def forward(self, x):
        flat = x.view(-1, WIDTH)
        weight, index = self.router(flat).softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(flat)
        for e, expert in enumerate(self.experts):
            token, slot = (index == e).nonzero(as_tuple=True)
            out.index_add_(0, token, expert(flat[token]) * weight[token, slot, None])
        return out.view_as(x)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2, self.moe = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH), Experts()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        q, k, v = (t.reshape(BATCH, LENGTH, HEADS, -1).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        return x + self.moe(self.n2(x))


torch.manual_seed(0)
torch.set_default_device("cuda")
embed, head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
model = nn.ModuleList([embed, head, *(Layer() for _ in range(LAYERS))]).bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
ids = torch.randint(0, WORDS, (BATCH, LENGTH))


def step() -> None:
    x = embed(ids)
    for layer in model[2:]:
        x = layer(x)
    F.cross_entropy(head(x).view(-1, WORDS), ids.view(-1)).backward()
    optimizer.step()
    optimizer.zero_grad()


timed("moe_loops", step)

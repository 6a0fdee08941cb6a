"""An encoder of 10 layers with T5's relative position bias, which has a gradient, added to attention's scores."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from steps import timed

WIDTH, HEADS, LAYERS, WORDS, BATCH, LENGTH, BUCKETS = 1024, 16, 10, 32128, 32, 512, 32


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.wi, self.wg = nn.Linear(WIDTH, 2816, bias=False), nn.Linear(WIDTH, 2816, bias=False)
        self.wo = nn.Linear(2816, WIDTH, bias=False)

    def forward(self, x, bias):
        h = self.n1(x)
        q, k, v = (w(h).view(BATCH, LENGTH, HEADS, -1).transpose(1, 2) for w in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
        x = x + self.o(a.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        h = self.n2(x)
        return x + self.wo(F.gelu(self.wg(h)) * self.wi(h))


def buckets(distance):
    half = BUCKETS // 2
    sign, n = (distance > 0).long() * half, distance.abs()
    far = half // 2 + (torch.log(n.float().clamp(1) / (half // 2)) / math.log(128 / (half // 2)) * (half // 2)).long()
    return sign + torch.where(n < half // 2, n, far.clamp(max=half - 1))


torch.manual_seed(0)
torch.set_default_device("cuda")
embed, table, head = nn.Embedding(WORDS, WIDTH), nn.Embedding(BUCKETS, HEADS), nn.Linear(WIDTH, WORDS, bias=False)
model = nn.ModuleList([embed, table, head, *(Layer() for _ in range(LAYERS))]).bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
ids = torch.randint(0, WORDS, (BATCH, LENGTH))
places = torch.arange(LENGTH)
which = buckets(places[None, :] - places[:, None])


def step() -> None:
    x = embed(ids)
    bias = table(which).permute(2, 0, 1)[None]
    for layer in model[3:]:
        x = layer(x, bias)
    F.cross_entropy(head(x).view(-1, WORDS), ids.view(-1)).backward()
    optimizer.step()
    optimizer.zero_grad()


timed("t5_encoder", step)

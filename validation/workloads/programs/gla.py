"""Gated linear attention: 6 layers of flash-linear-attention's chunked kernels, its gated norm and its fused loss."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from fla.modules import FusedLinearCrossEntropyLoss, FusedRMSNormGated, RMSNorm
from fla.ops import chunk_gla

from steps import timed

WIDTH, HEADS, LAYERS, WORDS, BATCH, LENGTH = 2048, 8, 6, 32000, 8, 2048


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2, self.n3 = RMSNorm(WIDTH), RMSNorm(WIDTH), FusedRMSNormGated(WIDTH // HEADS)
        self.qk, self.vg = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.low, self.decay = nn.Linear(WIDTH, 16, bias=False), nn.Linear(16, WIDTH // 2)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 8192, bias=False), nn.Linear(4096, WIDTH, bias=False)

    def forward(self, x):
        h = self.n1(x)
        (q, k), (v, gate) = self.qk(h).chunk(2, -1), self.vg(h).chunk(2, -1)
        decay = F.logsigmoid(self.decay(self.low(h)).float()) / 16
        q, k, v, decay, gate = (t.reshape(BATCH, LENGTH, HEADS, -1) for t in (q, k, v, decay, gate))
        r = self.n3(chunk_gla(q, k, v, decay)[0], gate).reshape(BATCH, LENGTH, WIDTH)
        x = x + self.out(r)
        a, b = self.up(self.n2(x)).chunk(2, -1)
        return x + self.down(F.silu(a) * b)


torch.manual_seed(0)
torch.set_default_device("cuda")
embed, head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
model = nn.ModuleList([embed, head, *(Layer() for _ in range(LAYERS))]).bfloat16()
loss_of = FusedLinearCrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
ids = torch.randint(0, WORDS, (BATCH, LENGTH))


def step() -> None:
    x = embed(ids)
    for layer in model[2:]:
        x = layer(x)
    loss_of(x.view(-1, WIDTH), ids.view(-1), head.weight, head.bias).backward()
    optimizer.step()
    optimizer.zero_grad()


timed("gla", step)

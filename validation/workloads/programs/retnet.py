"""A RetNet of 6 layers: flash-linear-attention's retention, its Triton kernels forward and backward."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from fla.ops import chunk_retention

from steps import timed

WIDTH, HEADS, LAYERS, WORDS, BATCH, LENGTH = 2048, 16, 6, 32000, 4, 2048


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2, self.n3 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH // HEADS)
        self.qkvg, self.out = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        q, k, v, g = self.qkvg(self.n1(x)).chunk(4, -1)
        q, k, v = (t.reshape(BATCH, LENGTH, HEADS, -1) for t in (q, k, v))
        r = self.n3(chunk_retention(q, k, v)[0]).reshape(BATCH, LENGTH, WIDTH)
        x = x + self.out(r * F.silu(g))
        return x + self.down(F.gelu(self.up(self.n2(x))))


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


timed("retnet", step)

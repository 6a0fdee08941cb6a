"""An RWKV-7 of 6 layers: flash-linear-attention's kernels for its generalised delta rule, forward and backward."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from fla.ops.rwkv7 import chunk_rwkv7

from steps import timed

WIDTH, HEADS, LAYERS, WORDS, BATCH, LENGTH = 1536, 24, 6, 32000, 4, 2048


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.rkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.low, self.high = nn.Linear(WIDTH, 128, bias=False), nn.Linear(128, 2 * WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)
        self.mix = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x):
        h = self.one(x)
        h = h + (F.pad(h[:, :-1], (0, 0, 1, 0)) - h) * self.mix
        r, k, v = (t.reshape(BATCH, LENGTH, HEADS, -1) for t in self.rkv(h).chunk(3, -1))
        w, a = (t.reshape(BATCH, LENGTH, HEADS, -1) for t in self.high(torch.tanh(self.low(h))).chunk(2, -1))
        w, a = -0.606531 * torch.sigmoid(w.float()), torch.sigmoid(a)
        n = F.normalize(k, dim=-1)
        o, _ = chunk_rwkv7(r, w.to(r.dtype), k * a, v, -n, n * a)
        x = x + self.out(o.reshape(x.shape))
        return x + self.down(F.relu(self.up(self.two(x))).square())


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


timed("rwkv", step)

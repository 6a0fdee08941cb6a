"""Prefill of a gated DeltaNet of 8 layers, without gradients: flash-linear-attention's chunked delta rule."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from fla.ops.gated_delta_rule import chunk_gated_delta_rule

from steps import timed

WIDTH, HEADS, LAYERS, WORDS, BATCH, LENGTH = 2048, 16, 8, 32000, 8, 4096


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2, self.n3 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH // HEADS)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gates = nn.Linear(WIDTH, 2 * HEADS, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        h = self.n1(x)
        q, k, v = (t.reshape(BATCH, LENGTH, HEADS, -1) for t in self.qkv(h).chunk(3, -1))
        decay, beta = self.gates(h).chunk(2, -1)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        o = chunk_gated_delta_rule(q, k, v, F.logsigmoid(decay.float()), beta.sigmoid())[0]
        x = x + self.out(self.n3(o).reshape(BATCH, LENGTH, WIDTH))
        return x + self.down(F.gelu(self.up(self.n2(x))))


torch.manual_seed(0)
torch.set_default_device("cuda")
embed, head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
model = nn.ModuleList([embed, head, *(Layer() for _ in range(LAYERS))]).bfloat16()
ids = torch.randint(0, WORDS, (BATCH, LENGTH))


@torch.no_grad()
def step() -> None:
    x = embed(ids)
    for layer in model[2:]:
        x = layer(x)
    head(x[:, -1]).argmax(-1)


timed("deltanet", step)

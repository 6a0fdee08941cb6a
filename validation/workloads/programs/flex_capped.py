"""A GPT of 8 layers whose attention is FlexAttention with a cap on the scores and a slope per head, all positions."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention.flex_attention import flex_attention

from steps import timed

WIDTH, HEADS, LAYERS, WORDS, BATCH, LENGTH = 2048, 16, 8, 32000, 4, 2048


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (t.reshape(BATCH, LENGTH, HEADS, -1).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1))
        a = attend(q, k, v, score_mod=capped)
        x = x + self.out(a.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        return x + self.down(F.gelu(self.up(self.n2(x))))


torch.manual_seed(0)
torch.set_default_device("cuda")
slopes = 2.0 ** -(torch.arange(1, HEADS + 1).float() / 2)


def capped(score, b, h, i, j):
    return 30 * torch.tanh((score + slopes[h] * (j - i)) / 30)


attend = torch.compile(flex_attention, dynamic=False)
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


timed("flex_capped", step)

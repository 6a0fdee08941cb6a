"""A GPT of 8 layers whose attention is compiled FlexAttention: packed documents, or a sliding window.

python flex_gpt.py documents|sliding
"""

import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from steps import timed

WIDTH, HEADS, LAYERS, WORDS, LENGTH = 2048, 16, 8, 32000, 8192
KIND = sys.argv[1]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (t.reshape(1, LENGTH, HEADS, -1).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1))
        a = attend(q, k, v, block_mask=mask)
        x = x + self.out(a.transpose(1, 2).reshape(1, LENGTH, WIDTH))
        return x + self.down(F.gelu(self.up(self.n2(x))))


torch.manual_seed(0)
torch.set_default_device("cuda")
bounds = torch.tensor([900, 1000, 2600, 2900, 5000, 5200, 7600])
owner = torch.bucketize(torch.arange(LENGTH), bounds, right=True)
MASKS = {
    "documents": lambda b, h, i, j: (i >= j) & (owner[i] == owner[j]),
    "sliding": lambda b, h, i, j: (i >= j) & (i - j < 768),
}
mask = create_block_mask(MASKS[KIND], None, None, LENGTH, LENGTH)
attend = torch.compile(flex_attention, dynamic=False)
embed, head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
model = nn.ModuleList([embed, head, *(Layer() for _ in range(LAYERS))]).bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
ids = torch.randint(0, WORDS, (1, LENGTH))


def step() -> None:
    x = embed(ids)
    for layer in model[2:]:
        x = layer(x)
    F.cross_entropy(head(x).view(-1, WORDS), ids.view(-1)).backward()
    optimizer.step()
    optimizer.zero_grad()


timed(f"flex_{KIND}", step)

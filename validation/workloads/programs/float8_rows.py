"""A decoder of 5 layers whose products are torchao's float8 with a scale for each row, compiled layer by layer."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

from steps import timed

WIDTH, HEADS, INNER, LAYERS, WORDS, BATCH, LENGTH = 3072, 24, 8192, 5, 32000, 4, 2048


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x):
        q, k, v = (t.reshape(BATCH, LENGTH, HEADS, -1).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.out(a)
        h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


torch.manual_seed(0)
torch.set_default_device("cuda")
embed, head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
layers = nn.ModuleList(Layer() for _ in range(LAYERS))
model = nn.ModuleList([embed, head, layers]).bfloat16()
convert_to_float8_training(layers, config=Float8LinearConfig.from_recipe_name("rowwise"))
for layer in layers:
    layer.compile()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
ids = torch.randint(0, WORDS, (BATCH, LENGTH))


def step() -> None:
    x = embed(ids)
    for layer in layers:
        x = layer(x)
    F.cross_entropy(head(x).view(-1, WORDS), ids.view(-1)).backward()
    optimizer.step()
    optimizer.zero_grad()


timed("float8_rows", step)

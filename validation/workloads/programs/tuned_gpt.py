"""A GPT of 6 layers, compiled with max-autotune (without CUDA graphs): products by Triton's templates where these win."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from steps import timed

WIDTH, HEADS, LAYERS, WORDS, BATCH, LENGTH = 1280, 20, 6, 50304, 16, 1024


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (t.view(BATCH, LENGTH, HEADS, -1).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(BATCH, LENGTH, WIDTH)
        x = x + F.dropout(self.out(a), 0.1)
        return x + F.dropout(self.down(F.gelu(self.up(self.n2(x)), approximate="tanh")), 0.1)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids):
        x = self.words(ids) + self.places.weight
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy((self.norm(x) @ self.words.weight.T).view(-1, WORDS), ids.view(-1))


torch.manual_seed(0)
torch.set_default_device("cuda")
model = Model().bfloat16()
compiled = torch.compile(model, mode="max-autotune-no-cudagraphs")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
ids = torch.randint(0, WORDS, (BATCH, LENGTH))


def step() -> None:
    compiled(ids).backward()
    optimizer.step()
    optimizer.zero_grad()


timed("tuned_gpt", step)

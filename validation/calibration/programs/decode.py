"""Greedy decoding with caches that grow by concatenation, token by token; .item() decides nothing but is read each token."""
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

from validation.calibration.programs.common import Step, main


class Layer(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Any]:
        b, s, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        x = x + self.out(a.transpose(1, 2).reshape(b, s, d))
        return x + self.down(F.gelu(self.up(self.norm2(x)))), (k, v)


class Model(nn.Module):
    def __init__(self, layers: int, dim: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(8192, dim)
        self.place = nn.Embedding(2048, dim)
        self.layers = nn.ModuleList(Layer(dim, dim // 64) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)

    def forward(self, ids: torch.Tensor, start: int, caches: list[Any]) -> tuple[torch.Tensor, list[Any]]:
        x = self.embed(ids) + self.place(torch.arange(start, start + ids.shape[1], device=ids.device))
        new = []
        for layer, cache in zip(self.layers, caches):
            x, cache = layer(x, cache)
            new.append(cache)
        return self.norm(x[:, -1]) @ self.embed.weight.T, new


def build(layers: int, dim: int, batch: int, prompt: int, tokens: int) -> Step:
    model = Model(layers, dim).cuda().to(torch.bfloat16).eval()
    ids = torch.randint(0, 8192, (batch, prompt), device="cuda")

    @torch.inference_mode()
    def step() -> None:
        logits, caches = model(ids, 0, [None] * layers)
        read = []
        for t in range(tokens):
            token = logits.argmax(-1, keepdim=True)
            read.append(token[0].item())
            logits, caches = model(token, prompt + t, caches)

    return step


main("decode", build, {
    "base": dict(layers=6, dim=512, batch=4, prompt=64, tokens=16), "deep": dict(layers=16, dim=512, batch=4, prompt=64, tokens=16),
    "long": dict(layers=6, dim=512, batch=4, prompt=512, tokens=48), "wide": dict(layers=4, dim=1024, batch=16, prompt=64, tokens=24),
})

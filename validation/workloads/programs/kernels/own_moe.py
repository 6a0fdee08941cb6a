"""A mixture of 16 experts, two a word, whose products are one grouped Triton kernel over words sorted by expert."""

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl

from validation.workloads.programs.steps import timed

WIDTH, INNER, EXPERTS, LAYERS, WORDS, BATCH, LENGTH, TILE = 1024, 2816, 16, 6, 32000, 8, 2048, 128


@triton.jit
def grouped(y, x, w, expert_of, rows, K, N, sx, sy, sk, sn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """y[r] = x[r] @ w[expert of r's tile]; every tile of rows has one expert."""
    tile, column = tl.program_id(1), tl.program_id(0)
    row = tile * BM + tl.arange(0, BM)
    n = column * BN + tl.arange(0, BN)
    expert = tl.load(expert_of + tile).to(tl.int64)
    total = tl.zeros([BM, BN], tl.float32)
    base = w + expert * K * N
    for k in range(0, K, BK):
        at = k + tl.arange(0, BK)
        a = tl.load(x + row[:, None].to(tl.int64) * sx + at[None, :], row[:, None] < rows, 0.0)
        b = tl.load(base + at[:, None] * sk + n[None, :] * sn)
        total = tl.dot(a, b, total)
    tl.store(y + row[:, None].to(tl.int64) * sy + n[None, :], total.to(tl.bfloat16), row[:, None] < rows)


def products(x: torch.Tensor, w: torch.Tensor, expert_of: torch.Tensor, back: bool) -> torch.Tensor:
    """[rows, K] by [experts, K, N], or by its transpose."""
    k, n = (w.shape[2], w.shape[1]) if back else w.shape[1:]
    y = x.new_empty(x.shape[0], n)
    sk, sn = (1, w.shape[2]) if back else (w.shape[2], 1)
    grid = (n // 128, x.shape[0] // TILE)
    grouped[grid](y, x, w, expert_of, x.shape[0], k, n, x.stride(0), n, sk, sn, BM=TILE, BN=128, BK=64, num_warps=8, num_stages=3)
    return y


class Grouped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, w: Any, expert_of: Any) -> Any:
        ctx.save_for_backward(x, w, expert_of)
        return products(x, w, expert_of, back=False)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        x, w, expert_of = ctx.saved_tensors
        share = x.shape[0] // EXPERTS  # words are dealt out evenly
        dw = torch.bmm(x.view(EXPERTS, share, -1).transpose(1, 2), dy.view(EXPERTS, share, -1))
        return products(dy.contiguous(), w, expert_of, back=True), dw, None


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 2 * INNER) * 0.02)
        self.down = nn.Parameter(torch.randn(EXPERTS, INNER, WIDTH) * 0.02)

    def forward(self, x: torch.Tensor, order: torch.Tensor, back: torch.Tensor, expert_of: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)[order]
        gate, up = Grouped.apply(h, self.up, expert_of).chunk(2, -1)
        h = Grouped.apply(F.silu(gate) * up, self.down, expert_of)
        return x + h[back].view(-1, 2, WIDTH).sum(1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.reshape(BATCH, LENGTH, 16, -1).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        return x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape))


torch.manual_seed(0)
torch.set_default_device("cuda")
embed, head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
layers = nn.ModuleList(m for _ in range(LAYERS) for m in (Attention(), Experts()))
model = nn.ModuleList([embed, head, layers]).bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
ids = torch.randint(0, WORDS, (BATCH, LENGTH))
pairs = torch.randperm(BATCH * LENGTH * 2)  # a random, even choice: pair p goes to expert p * EXPERTS // pairs
words, back = pairs // 2, torch.argsort(pairs)
tiles = torch.arange(pairs.numel() // TILE) * TILE * EXPERTS // pairs.numel()


def step() -> None:
    x = embed(ids).view(-1, WIDTH)
    for layer in layers:
        x = layer(x, words, back, tiles) if isinstance(layer, Experts) else layer(x)
    F.cross_entropy(head(x), ids.view(-1)).backward()
    optimizer.step()
    optimizer.zero_grad()


timed("own_moe", step)

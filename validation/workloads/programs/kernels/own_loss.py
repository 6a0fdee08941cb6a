"""A small Llama with 131,072 words: loss and rotary positions in Triton; the loss leaves its gradient in the logits."""

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl

from validation.workloads.programs.steps import timed

WIDTH, HEADS, LAYERS, WORDS, BATCH, LENGTH = 1024, 16, 8, 131072, 4, 2048
D = WIDTH // HEADS


@triton.jit
def loss_and_gradient(loss, logits, labels, V, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = logits + row * V
    label = tl.load(labels + row)
    top, total = -1e30, 0.0
    for start in range(0, V, BLOCK):
        v = tl.load(at + start + tl.arange(0, BLOCK)).to(tl.float32)
        new = tl.maximum(top, tl.max(v))
        total = total * tl.exp(top - new) + tl.sum(tl.exp(v - new))
        top = new
    tl.store(loss + row, tl.log(total) + top - tl.load(at + label).to(tl.float32))
    for start in range(0, V, BLOCK):
        n = start + tl.arange(0, BLOCK)
        p = tl.exp(tl.load(at + n).to(tl.float32) - top) / total - tl.where(n == label, 1.0, 0.0)
        tl.store(at + n, (p * scale).to(tl.bfloat16))


@triton.jit
def rotary(y, x, cos, sin, T, SIGN: tl.constexpr, H: tl.constexpr, HALF: tl.constexpr):
    """One program: a word's H heads of [2 HALF]."""
    row = tl.program_id(0).to(tl.int64)
    h, d = tl.arange(0, H), tl.arange(0, HALF)
    c, s = tl.load(cos + row % T * HALF + d)[None, :], tl.load(sin + row % T * HALF + d)[None, :] * SIGN
    at = row * H * 2 * HALF + h[:, None] * 2 * HALF + d[None, :]
    a, b = tl.load(x + at).to(tl.float32), tl.load(x + at + HALF).to(tl.float32)
    tl.store(y + at, (a * c - b * s).to(tl.bfloat16))
    tl.store(y + at + HALF, (b * c + a * s).to(tl.bfloat16))


class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Any, labels: Any) -> Any:
        rows = logits.shape[0]
        loss = logits.new_empty(rows, dtype=torch.float32)
        loss_and_gradient[(rows,)](loss, logits, labels, WORDS, 1.0 / rows, BLOCK=8192, num_warps=16)
        ctx.save_for_backward(logits)
        return loss.mean()

    @staticmethod
    def backward(ctx: Any, by: Any) -> Any:
        return ctx.saved_tensors[0].mul_(by), None


class Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, cos: Any, sin: Any) -> Any:
        ctx.save_for_backward(cos, sin)
        y = torch.empty_like(x)
        rotary[(BATCH * LENGTH,)](y, x, cos, sin, LENGTH, SIGN=1, H=HEADS, HALF=D // 2, num_warps=4)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        dx, dy = torch.empty_like(dy, memory_format=torch.contiguous_format), dy.contiguous()
        rotary[(BATCH * LENGTH,)](dx, dy, *ctx.saved_tensors, LENGTH, SIGN=-1, H=HEADS, HALF=D // 2, num_warps=4)
        return dx, None, None


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(WIDTH, 2816, bias=False), nn.Linear(WIDTH, 2816, bias=False), nn.Linear(2816, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        h = self.one(x)
        q, k = (Rotary.apply(w(h).view(BATCH, LENGTH, HEADS, D), cos, sin).transpose(1, 2) for w in (self.q, self.k))
        v = self.v(h).view(BATCH, LENGTH, HEADS, D).transpose(1, 2)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape))
        h = self.two(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


torch.manual_seed(0)
torch.set_default_device("cuda")
embed, head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
model = nn.ModuleList([embed, head, *(Layer() for _ in range(LAYERS))]).bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
ids = torch.randint(0, WORDS, (BATCH, LENGTH))
angles = torch.outer(torch.arange(LENGTH).float(), 10000.0 ** (-torch.arange(0, D, 2).float() / D))
cos, sin = angles.cos(), angles.sin()


def step() -> None:
    x = embed(ids)
    for layer in model[2:]:
        x = layer(x, cos, sin)
    Loss.apply(head(x).view(-1, WORDS), ids.view(-1)).backward()
    optimizer.step()
    optimizer.zero_grad()


timed("own_loss", step)

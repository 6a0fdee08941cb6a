"""A transformer of 8 layers whose layer norm and GELU are Triton kernels; the norm's gradients of weights meet by atomics."""

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl

from validation.workloads.programs.steps import language, timed

WIDTH, HEADS, LAYERS, WORDS, BATCH, LENGTH = 1536, 12, 8, 32000, 16, 1024


@triton.jit
def norm_forward(y, x, w, b, mean, scale, n, BLOCK: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = column < n
    v = tl.load(x + row * n + column, inside, 0.0).to(tl.float32)
    m = tl.sum(v) / n
    d = tl.where(inside, v - m, 0.0)
    r = tl.rsqrt(tl.sum(d * d) / n + 1e-5)
    out = d * r * tl.load(w + column, inside, 0.0).to(tl.float32) + tl.load(b + column, inside, 0.0).to(tl.float32)
    tl.store(y + row * n + column, out.to(tl.bfloat16), inside)
    tl.store(mean + row, m)
    tl.store(scale + row, r)


@triton.jit
def norm_backward(dx, dw, db, dy, x, w, mean, scale, rows, n, PER: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < n
    weight = tl.load(w + column, inside, 0.0).to(tl.float32)
    sum_w, sum_b = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for i in range(PER):
        row = tl.program_id(0).to(tl.int64) * PER + i
        g = tl.load(dy + row * n + column, inside, 0.0).to(tl.float32)
        r = tl.load(scale + row)
        h = (tl.load(x + row * n + column, inside, 0.0).to(tl.float32) - tl.load(mean + row)) * r
        h = tl.where(inside, h, 0.0)
        gw = g * weight
        change = (gw - (tl.sum(gw) + h * tl.sum(gw * h)) / n) * r
        tl.store(dx + row * n + column, change.to(tl.bfloat16), inside)
        sum_w += g * h
        sum_b += g
    tl.atomic_add(dw + column, sum_w, inside)
    tl.atomic_add(db + column, sum_b, inside)


@triton.jit
def gelu(y, x, dy, n, BACK: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, at < n).to(tl.float32)
    half = 0.5 * (1 + tl.erf(v * 0.7071067811865476))
    if BACK:
        v = tl.load(dy + at, at < n).to(tl.float32) * (half + v * tl.exp(-0.5 * v * v) * 0.3989422804014327)
    else:
        v = v * half
    tl.store(y + at, v.to(tl.bfloat16), at < n)


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, w: Any, b: Any) -> Any:
        rows = x.numel() // WIDTH
        y, (mean, scale) = torch.empty_like(x), x.new_empty(2, rows, dtype=torch.float32)
        norm_forward[(rows,)](y, x, w, b, mean, scale, WIDTH, BLOCK=2048, num_warps=8)
        ctx.save_for_backward(x, w, mean, scale)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        x, w, mean, scale = ctx.saved_tensors
        dy, rows = dy.contiguous(), x.numel() // WIDTH
        dx, sums = torch.empty_like(x), torch.zeros(2, WIDTH, device=x.device)
        norm_backward[(rows // 32,)](dx, sums[0], sums[1], dy, x, w, mean, scale, rows, WIDTH, PER=32, BLOCK=2048, num_warps=8)
        return dx, sums[0].bfloat16(), sums[1].bfloat16()


class Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        gelu[(triton.cdiv(x.numel(), 2048),)](y, x, x, x.numel(), BACK=False, BLOCK=2048)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        (x,) = ctx.saved_tensors
        dx = torch.empty_like(x)
        gelu[(triton.cdiv(x.numel(), 2048),)](dx, x, dy.contiguous(), x.numel(), BACK=True, BLOCK=2048)
        return dx


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2, self.b1, self.b2 = (nn.Parameter(torch.ones(WIDTH)) for _ in range(4))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = Norm.apply(x, self.w1, self.b1)
        q, k, v = (t.reshape(BATCH, LENGTH, HEADS, -1).transpose(1, 2) for t in self.qkv(h).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.out(a)
        return x + self.down(Gelu.apply(self.up(Norm.apply(x, self.w2, self.b2))))


if __name__ == "__main__":
    timed("own_norms", language(Layer, LAYERS, WIDTH, WORDS, (BATCH, LENGTH)))

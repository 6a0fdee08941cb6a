"""A transformer of 6 layers whose layer norms and attention's softmax are plain Triton kernels, forward and backward."""

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl

from validation.workloads.programs.steps import language, timed

WIDTH, HEADS, LAYERS, WORDS, BATCH, LENGTH = 2048, 16, 6, 32000, 8, 1024


@triton.jit
def norm_forward(y, x, w, b, mean, rstd, n: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, n)
    v = tl.load(x + row * n + column).to(tl.float32)
    m = tl.sum(v) / n
    d = v - m
    r = 1 / tl.sqrt(tl.sum(d * d) / n + 1e-5)
    tl.store(y + row * n + column, d * r * tl.load(w + column) + tl.load(b + column))
    tl.store(mean + row, m)
    tl.store(rstd + row, r)


@triton.jit
def norm_backward(dx, dw, db, dy, x, w, mean, rstd, rows, n: tl.constexpr):
    column = tl.arange(0, n)
    weight = tl.load(w + column).to(tl.float32)
    sum_w, sum_b = tl.zeros([n], tl.float32), tl.zeros([n], tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        g = tl.load(dy + row * n + column).to(tl.float32)
        hat = (tl.load(x + row * n + column).to(tl.float32) - tl.load(mean + row)) * tl.load(rstd + row)
        gw = g * weight
        d = (gw - tl.sum(gw) / n - hat * tl.sum(gw * hat) / n) * tl.load(rstd + row)
        tl.store(dx + row * n + column, d)
        sum_w += g * hat
        sum_b += g
    tl.store(dw + tl.program_id(0) * n + column, sum_w)
    tl.store(db + tl.program_id(0) * n + column, sum_b)


@triton.jit
def softmax_forward(y, x, length: tl.constexpr, scale):
    row, column = tl.program_id(0), tl.arange(0, length)
    v = tl.load(x + row * length + column).to(tl.float32) * scale
    v = tl.where(column <= row % length, v, float("-inf"))
    e = tl.exp(v - tl.max(v))
    tl.store(y + row * length + column, e / tl.sum(e))


@triton.jit
def softmax_backward(dx, dy, y, length: tl.constexpr, scale):
    row, column = tl.program_id(0), tl.arange(0, length)
    g, p = tl.load(dy + row * length + column).to(tl.float32), tl.load(y + row * length + column).to(tl.float32)
    tl.store(dx + row * length + column, p * (g - tl.sum(g * p)) * scale)


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, w: Any, b: Any) -> Any:
        rows = x.numel() // WIDTH
        y, mean, rstd = (
            torch.empty_like(x),
            x.new_empty(rows, dtype=torch.float32),
            x.new_empty(rows, dtype=torch.float32),
        )
        norm_forward[(rows,)](y, x, w, b, mean, rstd, WIDTH, num_warps=8)
        ctx.save_for_backward(x, w, mean, rstd)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        x, w, mean, rstd = ctx.saved_tensors
        dy, dx, programs = dy.contiguous(), torch.empty_like(x), 264
        dw, db = (torch.empty(programs, WIDTH, device=x.device) for _ in range(2))
        norm_backward[(programs,)](dx, dw, db, dy, x, w, mean, rstd, x.numel() // WIDTH, WIDTH, num_warps=8)
        return dx, dw.sum(0).to(w.dtype), db.sum(0).to(w.dtype)


class CausalSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = torch.empty_like(x)
        softmax_forward[(x.numel() // LENGTH,)](y, x, LENGTH, (WIDTH // HEADS) ** -0.5)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        (y,) = ctx.saved_tensors
        dx = torch.empty_like(y)
        softmax_backward[(y.numel() // LENGTH,)](dx, dy.contiguous(), y, LENGTH, (WIDTH // HEADS) ** -0.5)
        return dx


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.b1, self.w2, self.b2 = (
            nn.Parameter(f(WIDTH)) for f in (torch.ones, torch.zeros, torch.ones, torch.zeros)
        )
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(Norm.apply(x, self.w1, self.b1))
        q, k, v = (t.reshape(BATCH, LENGTH, HEADS, -1).transpose(1, 2) for t in qkv.chunk(3, -1))
        a = CausalSoftmax.apply(q @ k.transpose(2, 3)) @ v
        x = x + self.out(a.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        return x + self.down(F.gelu(self.up(Norm.apply(x, self.w2, self.b2))))


if __name__ == "__main__":
    timed("triton_transformer", language(Layer, LAYERS, WIDTH, WORDS, (BATCH, LENGTH)))

"""A transformer of 12 layers with sliding-window attention in Triton: bounds of the loop depend on the program's place."""

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl

from validation.workloads.programs.steps import language, timed

WIDTH, HEADS, LAYERS, WORDS, BATCH, LENGTH, WINDOW = 1024, 16, 12, 32000, 4, 4096, 512
D = WIDTH // HEADS


@triton.jit
def forward(o, lse, q, k, v, scale, T, W: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    block, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row, d = block * BM + tl.arange(0, BM), tl.arange(0, D)
    base = head * T * D
    a = tl.load(q + base + row[:, None] * D + d[None, :])
    top, below, out = tl.full([BM], -1e30, tl.float32), tl.zeros([BM], tl.float32), tl.zeros([BM, D], tl.float32)
    for start in range(tl.maximum(0, block * BM - W) // BN * BN, block * BM + BM, BN):
        n = start + tl.arange(0, BN)
        b = tl.load(k + base + n[:, None] * D + d[None, :])
        s = tl.dot(a, tl.trans(b)) * scale
        far = row[:, None] - n[None, :]
        s = tl.where((far >= 0) & (far < W), s, -1e30)
        new = tl.maximum(top, tl.max(s, 1))
        p, shrink = tl.exp2(s - new[:, None]), tl.exp2(top - new)
        below = below * shrink + tl.sum(p, 1)
        c = tl.load(v + base + n[:, None] * D + d[None, :])
        out = tl.dot(p.to(tl.bfloat16), c, out * shrink[:, None])
        top = new
    tl.store(o + base + row[:, None] * D + d[None, :], (out / below[:, None]).to(tl.bfloat16))
    tl.store(lse + head * T + row, top + tl.log2(below))


@triton.jit
def backward_kv(dk, dv, q, k, v, do, lse, delta, scale, plain, T, W: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    block, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    n, d = block * BN + tl.arange(0, BN), tl.arange(0, D)
    base = head * T * D
    b = tl.load(k + base + n[:, None] * D + d[None, :])
    c = tl.load(v + base + n[:, None] * D + d[None, :])
    gk, gv = tl.zeros([BN, D], tl.float32), tl.zeros([BN, D], tl.float32)
    for start in range(block * BN // BM * BM, tl.minimum(T, block * BN + BN + W), BM):
        row = start + tl.arange(0, BM)
        a = tl.load(q + base + row[:, None] * D + d[None, :])
        g = tl.load(do + base + row[:, None] * D + d[None, :])
        s = tl.dot(a, tl.trans(b)) * scale - tl.load(lse + head * T + row)[:, None]
        far = row[:, None] - n[None, :]
        p = tl.where((far >= 0) & (far < W), tl.exp2(s), 0.0)
        gv = tl.dot(tl.trans(p).to(tl.bfloat16), g, gv)
        ds = p * (tl.dot(g, tl.trans(c)) - tl.load(delta + head * T + row)[:, None]) * plain
        gk = tl.dot(tl.trans(ds).to(tl.bfloat16), a, gk)
    tl.store(dk + base + n[:, None] * D + d[None, :], gk.to(tl.bfloat16))
    tl.store(dv + base + n[:, None] * D + d[None, :], gv.to(tl.bfloat16))


@triton.jit
def backward_q(dq, q, k, v, do, lse, delta, scale, plain, T, W: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    block, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row, d = block * BM + tl.arange(0, BM), tl.arange(0, D)
    base = head * T * D
    a = tl.load(q + base + row[:, None] * D + d[None, :])
    g = tl.load(do + base + row[:, None] * D + d[None, :])
    top, less = tl.load(lse + head * T + row), tl.load(delta + head * T + row)
    total = tl.zeros([BM, D], tl.float32)
    for start in range(tl.maximum(0, block * BM - W) // BN * BN, block * BM + BM, BN):
        n = start + tl.arange(0, BN)
        b = tl.load(k + base + n[:, None] * D + d[None, :])
        c = tl.load(v + base + n[:, None] * D + d[None, :])
        s = tl.dot(a, tl.trans(b)) * scale - top[:, None]
        far = row[:, None] - n[None, :]
        p = tl.where((far >= 0) & (far < W), tl.exp2(s), 0.0)
        ds = p * (tl.dot(g, tl.trans(c)) - less[:, None]) * plain
        total = tl.dot(ds.to(tl.bfloat16), b, total)
    tl.store(dq + base + row[:, None] * D + d[None, :], total.to(tl.bfloat16))


class Window(torch.autograd.Function):
    scale = D**-0.5 * 1.4426950408889634

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
        o, lse = torch.empty_like(q), q.new_empty(q.shape[0], LENGTH, dtype=torch.float32)
        forward[(LENGTH // 128, q.shape[0])](o, lse, q, k, v, Window.scale, LENGTH, W=WINDOW, D=D, BM=128, BN=64, num_warps=4, num_stages=3)
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    def backward(ctx: Any, do: Any) -> Any:
        q, k, v, o, lse = ctx.saved_tensors
        do = do.contiguous()
        delta = (o.float() * do.float()).sum(-1)
        dq, dk, dv = (torch.empty_like(t) for t in (q, k, v))
        rest = q, k, v, do, lse, delta, Window.scale, D**-0.5, LENGTH
        backward_kv[(LENGTH // 64, q.shape[0])](dk, dv, *rest, W=WINDOW, D=D, BM=64, BN=64, num_warps=4, num_stages=2)
        backward_q[(LENGTH // 64, q.shape[0])](dq, *rest, W=WINDOW, D=D, BM=64, BN=64, num_warps=4, num_stages=2)
        return dq, dk, dv


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.one(x)).view(BATCH, LENGTH, 3, HEADS, D).permute(2, 0, 3, 1, 4).reshape(3, BATCH * HEADS, LENGTH, D)
        a = Window.apply(*parts.unbind())
        x = x + self.out(a.view(BATCH, HEADS, LENGTH, D).transpose(1, 2).reshape(x.shape))
        return x + self.down(F.relu(self.up(self.two(x))).square())


if __name__ == "__main__":
    timed("own_window", language(Layer, LAYERS, WIDTH, WORDS, (BATCH, LENGTH)))

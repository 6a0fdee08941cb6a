"""A decoder of 6 layers with causal attention in Triton of its own, forward and backward (two kernels, no atomics)."""

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl

from validation.workloads.programs.steps import language, timed

WIDTH, HEADS, LAYERS, WORDS, BATCH, LENGTH = 2048, 16, 6, 32000, 4, 4096
SIZE = WIDTH // HEADS


@triton.jit
def tile(p, start, length: tl.constexpr, size: tl.constexpr, block: tl.constexpr):
    rows, columns = start + tl.arange(0, block), tl.arange(0, size)
    return p + rows[:, None] * size + columns[None, :]


@triton.jit
def forward(o, lse, q, k, v, scale, length: tl.constexpr, size: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    head, start = tl.program_id(1).to(tl.int64), tl.program_id(0) * M
    base = head * length * size
    rows = start + tl.arange(0, M)
    query = tl.load(tile(q + base, start, length, size, M))
    most, total = tl.full([M], -float("inf"), tl.float32), tl.zeros([M], tl.float32)
    out = tl.zeros([M, size], tl.float32)
    for at in range(0, start + M, N):
        score = tl.dot(query, tl.trans(tl.load(tile(k + base, at, length, size, N)))) * scale
        columns = at + tl.arange(0, N)
        score = tl.where(rows[:, None] >= columns[None, :], score, -float("inf"))
        new = tl.maximum(most, tl.max(score, 1))
        weight, shrink = tl.exp(score - new[:, None]), tl.exp(most - new)
        total = total * shrink + tl.sum(weight, 1)
        out = out * shrink[:, None] + tl.dot(weight.to(tl.bfloat16), tl.load(tile(v + base, at, length, size, N)))
        most = new
    tl.store(tile(o + base, start, length, size, M), (out / total[:, None]).to(tl.bfloat16))
    tl.store(lse + head * length + rows, most + tl.log(total))


@triton.jit
def backward_kv(
    dk, dv, do, q, k, v, lse, delta, scale, length: tl.constexpr, size: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):
    head, start = tl.program_id(1).to(tl.int64), tl.program_id(0) * N
    base = head * length * size
    columns = start + tl.arange(0, N)
    key, value = tl.load(tile(k + base, start, length, size, N)), tl.load(tile(v + base, start, length, size, N))
    sum_k, sum_v = tl.zeros([N, size], tl.float32), tl.zeros([N, size], tl.float32)
    for at in range(start // M * M, length, M):
        rows = at + tl.arange(0, M)
        query, gradient = tl.load(tile(q + base, at, length, size, M)), tl.load(tile(do + base, at, length, size, M))
        weight = tl.exp(tl.dot(query, tl.trans(key)) * scale - tl.load(lse + head * length + rows)[:, None])
        weight = tl.where(rows[:, None] >= columns[None, :], weight, 0.0)
        sum_v += tl.dot(tl.trans(weight.to(tl.bfloat16)), gradient)
        change = weight * (tl.dot(gradient, tl.trans(value)) - tl.load(delta + head * length + rows)[:, None]) * scale
        sum_k += tl.dot(tl.trans(change.to(tl.bfloat16)), query)
    tl.store(tile(dk + base, start, length, size, N), sum_k.to(tl.bfloat16))
    tl.store(tile(dv + base, start, length, size, N), sum_v.to(tl.bfloat16))


@triton.jit
def backward_q(
    dq, do, q, k, v, lse, delta, scale, length: tl.constexpr, size: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):
    head, start = tl.program_id(1).to(tl.int64), tl.program_id(0) * M
    base = head * length * size
    rows = start + tl.arange(0, M)
    query, gradient = tl.load(tile(q + base, start, length, size, M)), tl.load(tile(do + base, start, length, size, M))
    logs, means = tl.load(lse + head * length + rows), tl.load(delta + head * length + rows)
    total = tl.zeros([M, size], tl.float32)
    for at in range(0, start + M, N):
        columns = at + tl.arange(0, N)
        key, value = tl.load(tile(k + base, at, length, size, N)), tl.load(tile(v + base, at, length, size, N))
        weight = tl.exp(tl.dot(query, tl.trans(key)) * scale - logs[:, None])
        weight = tl.where(rows[:, None] >= columns[None, :], weight, 0.0)
        change = weight * (tl.dot(gradient, tl.trans(value)) - means[:, None]) * scale
        total += tl.dot(change.to(tl.bfloat16), key)
    tl.store(tile(dq + base, start, length, size, M), total.to(tl.bfloat16))


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
        o, lse = torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32)
        forward[(LENGTH // 128, BATCH * HEADS)](
            o, lse, q, k, v, SIZE**-0.5, LENGTH, SIZE, 128, 64, num_warps=8, num_stages=3
        )
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    def backward(ctx: Any, do: Any) -> Any:
        q, k, v, o, lse = ctx.saved_tensors
        do = do.contiguous()
        delta = (do.float() * o.float()).sum(-1)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        words = (do, q, k, v, lse, delta, SIZE**-0.5, LENGTH, SIZE)
        backward_kv[(LENGTH // 64, BATCH * HEADS)](dk, dv, *words, 64, 64, num_warps=4, num_stages=2)
        backward_q[(LENGTH // 64, BATCH * HEADS)](dq, *words, 64, 64, num_warps=4, num_stages=2)
        return dq, dk, dv


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 8192, bias=False), nn.Linear(8192, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            t.reshape(BATCH, LENGTH, HEADS, SIZE).transpose(1, 2).contiguous()
            for t in self.qkv(self.n1(x)).chunk(3, -1)
        )
        x = x + self.out(Attention.apply(q, k, v).transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        return x + self.down(F.silu(self.up(self.n2(x))))


if __name__ == "__main__":
    timed("own_attention", language(Layer, LAYERS, WIDTH, WORDS, (BATCH, LENGTH)))

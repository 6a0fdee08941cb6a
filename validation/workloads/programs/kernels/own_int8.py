"""Inference of a perceptron of 10 layers with products in int8 by Triton: rows are quantized on the way."""

import torch
import triton
import triton.language as tl

from validation.workloads.programs.steps import timed

WIDTH, INNER, LAYERS, TOKENS = 4096, 11008, 10, 16384


@triton.jit
def quantize(q, scale, x, n, BLOCK: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    v = tl.load(x + row * n + column, column < n, 0.0).to(tl.float32)
    s = tl.max(tl.abs(v)) / 127.0
    tl.store(q + row * n + column, (v / s).to(tl.int8), column < n)
    tl.store(scale + row, s)


@triton.jit
def product(c, a, b, scale_a, scale_b, m, n, k, GATE: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    tiles = tl.cdiv(n, N)
    group = tl.program_id(0) // (8 * tiles)
    inner = tl.program_id(0) % (8 * tiles)
    row, column = (group * 8 + inner % 8) * M + tl.arange(0, M), inner // 8 * N + tl.arange(0, N)
    at = tl.arange(0, K)
    pa = a + row.to(tl.int64)[:, None] * k + at[None, :]
    pb = b + column.to(tl.int64)[None, :] * k + at[:, None]
    total = tl.zeros([M, N], tl.int32)
    for _ in range(0, k, K):
        total = tl.dot(tl.load(pa), tl.load(pb), total, out_dtype=tl.int32)
        pa += K
        pb += K
    v = total.to(tl.float32) * tl.load(scale_a + row)[:, None] * tl.load(scale_b + column)[None, :]
    if GATE:
        v = v * tl.sigmoid(v)
    tl.store(c + row.to(tl.int64)[:, None] * n + column[None, :], v.to(tl.bfloat16))


def linear(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, gate: bool) -> torch.Tensor:
    (m, k), n = x.shape, weight.shape[0]
    q, scales, y = x.new_empty(m, k, dtype=torch.int8), x.new_empty(m, dtype=torch.float32), x.new_empty(m, n)
    quantize[(m,)](q, scales, x, k, BLOCK=triton.next_power_of_2(k), num_warps=8)
    grid = (m // 128 * triton.cdiv(n, 256),)
    product[grid](y, q, weight, scales, scale, m, n, k, GATE=gate, M=128, N=256, K=128, num_warps=8, num_stages=3)
    return y


torch.manual_seed(0)
torch.set_default_device("cuda")
ups = [torch.randint(-127, 127, (INNER, WIDTH), dtype=torch.int8) for _ in range(LAYERS)]
downs = [torch.randint(-127, 127, (WIDTH, INNER), dtype=torch.int8) for _ in range(LAYERS)]
scale_up, scale_down = torch.rand(INNER), torch.rand(WIDTH)
tokens = torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16)


def step() -> None:
    x = tokens
    for up, down in zip(ups, downs, strict=True):
        x = x + linear(linear(x, up, scale_up, True), down, scale_down, False)


timed("own_int8", step)

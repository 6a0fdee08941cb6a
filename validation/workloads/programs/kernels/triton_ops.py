"""A compiled Llama of 8 layers with two operators of its own in Triton (`torch.library.triton_op`): a norm with the residual
sum, and the gate of the MLP."""

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

from validation.workloads.programs.steps import timed

WIDTH, HEADS, INNER, LAYERS, WORDS, BATCH, LENGTH = 2048, 16, 5632, 8, 32000, 16, 2048


@triton.jit
def add_norm(y, z, x, r, w, n: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, n)
    v = tl.load(x + row * n + column).to(tl.float32) + tl.load(r + row * n + column).to(tl.float32)
    tl.store(z + row * n + column, v.to(tl.bfloat16))
    v *= tl.rsqrt(tl.sum(v * v) / n + 1e-6)
    tl.store(y + row * n + column, (v * tl.load(w + column).to(tl.float32)).to(tl.bfloat16))


@triton.jit
def gate_up(y, x, inner: tl.constexpr, BLOCK: tl.constexpr):
    row, column = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = column < inner
    a = tl.load(x + row * 2 * inner + column, mask).to(tl.float32)
    b = tl.load(x + row * 2 * inner + inner + column, mask).to(tl.float32)
    tl.store(y + row * inner + column, (a * tl.sigmoid(a) * b).to(tl.bfloat16), mask)


@triton_op("unseen::add_norm", mutates_args={})
def norm_of_sum(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y, z = torch.empty_like(x), torch.empty_like(x)
    wrap_triton(add_norm)[(x.numel() // WIDTH,)](y, z, x, r, w, WIDTH, num_warps=8)
    return y, z


@triton_op("unseen::gate_up", mutates_args={})
def gated(x: torch.Tensor) -> torch.Tensor:
    y = x.new_empty(*x.shape[:-1], INNER)
    wrap_triton(gate_up)[(triton.cdiv(INNER, 1024), x.numel() // (2 * INNER))](y, x, INNER, 1024)
    return y


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(WIDTH))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 2 * INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h, r = norm_of_sum(x, r, self.w1)
        q, k, v = (t.reshape(BATCH, LENGTH, HEADS, -1).transpose(1, 2) for t in self.qkv(h).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(BATCH, LENGTH, WIDTH)
        h, r = norm_of_sum(self.out(a), r, self.w2)
        return self.down(gated(self.up(h))), r


torch.manual_seed(0)
torch.set_default_device("cuda")
embed, head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
layers = nn.ModuleList(Layer() for _ in range(LAYERS))
model = nn.ModuleList([embed, head, layers]).bfloat16().eval()
ids = torch.randint(0, WORDS, (BATCH, LENGTH))


@torch.compile
def scored(ids: Any) -> Any:
    x = embed(ids)
    r = torch.zeros_like(x)
    for layer in layers:
        x, r = layer(x, r)
    return F.cross_entropy(head(x + r).view(-1, WORDS).float(), ids.view(-1))


@torch.no_grad()
def step() -> None:
    scored(ids)


timed("triton_ops", step)

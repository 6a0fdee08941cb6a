"""A mixture of 16 experts, two for a token, whose products are one Triton kernel over all experts, forward only (prefill)."""

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl

from validation.workloads.programs.steps import timed

WIDTH, INNER, EXPERTS, LAYERS, TOKENS = 2048, 2816, 16, 8, 16384
ROWS, COLUMNS, DEEP = 128, 128, 64


@triton.jit
def grouped(y, x, w, owner, n: tl.constexpr, k: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEEP: tl.constexpr):
    """y[rows of a tile] = x[rows] @ w[expert of the tile]; every tile of rows belongs to one expert."""
    tile, column = tl.program_id(1), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    expert = tl.load(owner + tile)
    row, deep = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, DEEP)
    left = x + row[:, None] * k + deep[None, :]
    right = w + expert.to(tl.int64) * n * k + deep[:, None] * n + column[None, :]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for _ in range(0, k, DEEP):
        total = tl.dot(tl.load(left), tl.load(right), total)
        left += DEEP
        right += DEEP * n
    tl.store(y + row[:, None] * n + column[None, :], total.to(tl.bfloat16))


def product(x: Any, w: Any, owner: Any) -> Any:
    n, k = w.shape[2], w.shape[1]
    y = x.new_empty(x.shape[0], n)
    grouped[(n // COLUMNS, x.shape[0] // ROWS)](y, x, w, owner, n, k, ROWS, COLUMNS, DEEP, num_warps=8, num_stages=3)
    return y


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.router = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 2 * INNER) * 0.02)
        self.down = nn.Parameter(torch.randn(EXPERTS, INNER, WIDTH) * 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        weight, chosen = self.router(h).softmax(-1).topk(2)
        # every expert gets as many tokens as any other: its tiles need no padding
        order = chosen.flatten().argsort(stable=True)
        rows = h[order // 2]
        a, b = product(rows, self.up, owner).chunk(2, -1)
        out = product(F.silu(a) * b, self.down, owner) * weight.flatten()[order, None]
        return x + torch.zeros_like(x).index_add_(0, order // 2, out.to(x.dtype))


torch.manual_seed(0)
torch.set_default_device("cuda")
model = nn.Sequential(*(Experts() for _ in range(LAYERS))).bfloat16().eval()
owner = torch.arange(2 * TOKENS // ROWS, dtype=torch.int32) // (2 * TOKENS // ROWS // EXPERTS)
x = torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16)


@torch.no_grad()
def step() -> None:
    model(x)


timed("grouped_moe", step)

"""Sets of different sizes through a perceptron, summed and normalized per set by Triton kernels that read the sets' offsets."""

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl

from validation.workloads.programs.steps import timed

WIDTH, LAYERS, SETS, CLASSES = 1024, 6, 4096, 100


@triton.jit
def sums(y, x, offsets, n: tl.constexpr, BLOCK: tl.constexpr):
    """Mean of each set's rows."""
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first, last = tl.load(offsets + tl.program_id(0)), tl.load(offsets + tl.program_id(0) + 1)
    total = tl.zeros([BLOCK], tl.float32)
    for row in range(first, last):
        total += tl.load(x + row * n + column).to(tl.float32)
    tl.store(y + tl.program_id(0) * n + column, (total / tl.maximum(last - first, 1)).to(tl.bfloat16))


@triton.jit
def spread(y, x, offsets, n: tl.constexpr, BLOCK: tl.constexpr):
    """Each set's row to its members."""
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first, last = tl.load(offsets + tl.program_id(0)), tl.load(offsets + tl.program_id(0) + 1)
    v = tl.load(x + tl.program_id(0) * n + column).to(tl.float32) / tl.maximum(last - first, 1)
    for row in range(first, last):
        tl.store(y + row * n + column, v.to(tl.bfloat16))


class Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, offsets: Any) -> Any:
        ctx.save_for_backward(offsets)
        ctx.rows = x.shape[0]
        y = x.new_empty(SETS, WIDTH)
        sums[(SETS, WIDTH // 512)](y, x, offsets, WIDTH, 512, num_warps=4)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        (offsets,) = ctx.saved_tensors
        dx = dy.new_empty(ctx.rows, WIDTH)
        spread[(SETS, WIDTH // 512)](dx, dy.contiguous(), offsets, WIDTH, 512, num_warps=4)
        return dx, None


torch.manual_seed(0)
lengths = torch.randint(4, 60, (SETS,))
offsets = F.pad(lengths.cumsum(0), (1, 0)).cuda()
rows = int(lengths.sum())
which = torch.repeat_interleave(torch.arange(SETS), lengths).cuda()
torch.set_default_device("cuda")
ups = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(LAYERS))
downs = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(LAYERS))
last = nn.Linear(WIDTH, CLASSES)
model = nn.ModuleList([*ups, *downs, last]).bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
points, labels = torch.randn(rows, WIDTH, dtype=torch.bfloat16), torch.randint(0, CLASSES, (SETS,))


def step() -> None:
    x = points
    for up, down in zip(ups, downs, strict=True):
        x = x + down(F.relu(up(x))) - Mean.apply(x, offsets)[which]
    F.cross_entropy(last(Mean.apply(x, offsets)), labels).backward()
    optimizer.step()
    optimizer.zero_grad()


timed("segments", step)

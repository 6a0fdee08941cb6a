"""A residual convolutional network in channels-last whose group norm with SiLU is a pair of Triton kernels, under autocast."""

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl

from validation.workloads.programs.steps import timed

BATCH, SIZE, GROUPS = 32, 64, 32


@triton.jit
def norm(y, x, w, b, stats, hw, C, P: tl.constexpr, G: tl.constexpr, BLOCK: tl.constexpr):
    """One program: a group of one image; two passes over [hw, P] channels that lie apart by C."""
    image, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    c = tl.arange(0, P)
    total, squares = tl.zeros([BLOCK, P], tl.float32), tl.zeros([BLOCK, P], tl.float32)
    base = image * hw * C + group * P
    for start in range(0, hw, BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.load(x + base + at[:, None] * C + c[None, :], at[:, None] < hw, 0.0).to(tl.float32)
        total += v
        squares += v * v
    mean = tl.sum(total) / (hw * P)
    scale = tl.rsqrt(tl.sum(squares) / (hw * P) - mean * mean + 1e-5)
    weight, bias = tl.load(w + group * P + c)[None, :], tl.load(b + group * P + c)[None, :]
    for start in range(0, hw, BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.load(x + base + at[:, None] * C + c[None, :], at[:, None] < hw, 0.0).to(tl.float32)
        z = (v - mean) * scale * weight + bias
        tl.store(y + base + at[:, None] * C + c[None, :], (z * tl.sigmoid(z)).to(tl.bfloat16), at[:, None] < hw)
    tl.store(stats + (image * G + group) * 2, mean)
    tl.store(stats + (image * G + group) * 2 + 1, scale)


@triton.jit
def norm_back(dx, dw, db, dy, x, w, b, stats, hw, C, P: tl.constexpr, G: tl.constexpr, BLOCK: tl.constexpr):
    image, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    c = tl.arange(0, P)
    mean, scale = tl.load(stats + (image * G + group) * 2), tl.load(stats + (image * G + group) * 2 + 1)
    weight, bias = tl.load(w + group * P + c)[None, :], tl.load(b + group * P + c)[None, :]
    sum_w, sum_b = tl.zeros([BLOCK, P], tl.float32), tl.zeros([BLOCK, P], tl.float32)
    base = image * hw * C + group * P
    for start in range(0, hw, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at[:, None] < hw
        h = (tl.load(x + base + at[:, None] * C + c[None, :], inside, 0.0).to(tl.float32) - mean) * scale
        z = h * weight + bias
        s = tl.sigmoid(z)
        g = tl.load(dy + base + at[:, None] * C + c[None, :], inside, 0.0).to(tl.float32) * s * (1 + z * (1 - s))
        sum_w += tl.where(inside, g * h, 0.0)
        sum_b += g
    part_w, part_b = tl.sum(sum_w, 0), tl.sum(sum_b, 0)
    tl.atomic_add(dw + group * P + c, part_w)
    tl.atomic_add(db + group * P + c, part_b)
    count = hw * P
    one = tl.sum(part_w * tl.load(w + group * P + c)) / count
    two = tl.sum(part_b * tl.load(w + group * P + c)) / count
    for start in range(0, hw, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at[:, None] < hw
        h = (tl.load(x + base + at[:, None] * C + c[None, :], inside, 0.0).to(tl.float32) - mean) * scale
        z = h * weight + bias
        s = tl.sigmoid(z)
        g = tl.load(dy + base + at[:, None] * C + c[None, :], inside, 0.0).to(tl.float32) * s * (1 + z * (1 - s))
        tl.store(dx + base + at[:, None] * C + c[None, :], ((g * weight - two - h * one) * scale).to(tl.bfloat16), inside)


class NormAct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, w: Any, b: Any) -> Any:
        x = x.to(torch.bfloat16, memory_format=torch.channels_last)
        n, c, h, wide = x.shape
        y, stats = torch.empty_like(x), x.new_empty(n, GROUPS, 2, dtype=torch.float32)
        norm[(n, GROUPS)](y, x, w, b, stats, h * wide, c, P=c // GROUPS, G=GROUPS, BLOCK=128, num_warps=4)
        ctx.save_for_backward(x, w, b, stats)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        x, w, b, stats = ctx.saved_tensors
        n, c, h, wide = x.shape
        dy = dy.to(torch.bfloat16, memory_format=torch.channels_last)
        dx, sums = torch.empty_like(x), torch.zeros(2, c, device=x.device)
        norm_back[(n, GROUPS)](dx, sums[0], sums[1], dy, x, w, b, stats, h * wide, c, P=c // GROUPS, G=GROUPS, BLOCK=128, num_warps=4)
        return dx, sums[0], sums[1]


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.w1, self.b1 = nn.Parameter(torch.ones(inputs)), nn.Parameter(torch.zeros(inputs))
        self.w2, self.b2 = nn.Parameter(torch.ones(outputs)), nn.Parameter(torch.zeros(outputs))
        self.c1, self.c2 = nn.Conv2d(inputs, outputs, 3, stride, 1), nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 or inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.c1(NormAct.apply(x, self.w1, self.b1))
        return self.skip(x) + self.c2(NormAct.apply(h, self.w2, self.b2))


torch.manual_seed(0)
torch.set_default_device("cuda")
widths = [256, 256, 512, 512, 1024, 1024]
blocks = [Block(a, b, 1 if a == b else 2) for a, b in zip([256, *widths[:-1]], widths, strict=True)]
model = nn.Sequential(nn.Conv2d(3, 256, 3, 1, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, 1000))
model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
images = torch.randn(BATCH, 3, SIZE, SIZE).to(memory_format=torch.channels_last)
labels = torch.randint(0, 1000, (BATCH,))


def step() -> None:
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


timed("own_groups", step)

"""Eight blocks of gated causal convolutions with 8 taps per channel, as in Hyena's short filters: Triton forward and backward."""

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl

from validation.workloads.programs.steps import language, timed

WIDTH, LAYERS, WORDS, BATCH, LENGTH, TAPS = 2048, 8, 32000, 8, 2048, 8


@triton.jit
def convolve(y, x, w, length, n: tl.constexpr, taps: tl.constexpr, BACK: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """[batch, length, channel]; taps lie next to each other in `w` [taps, channel]. BACK: what reaches x from y."""
    channel = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    token = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    base = tl.program_id(0).to(tl.int64) * length * n
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for tap in tl.static_range(taps):
        at = token + tap if BACK else token - tap
        inside = (at >= 0) & (at < length)
        v = tl.load(x + base + at[:, None] * n + channel[None, :], inside[:, None], 0.0).to(tl.float32)
        total += v * tl.load(w + tap * n + channel).to(tl.float32)[None, :]
    tl.store(y + base + token[:, None] * n + channel[None, :], total.to(tl.bfloat16))


@triton.jit
def weights(dw, dy, x, length, n: tl.constexpr, taps: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Gradient of one tap, summed over a part of the sequence."""
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    part, tap = tl.program_id(0) // taps, tl.program_id(0) % taps
    total = tl.zeros([BLOCK], tl.float32)
    for i in range(ROWS):
        row = part * ROWS + i
        g = tl.load(dy + row.to(tl.int64) * n + channel).to(tl.float32)
        inside = row % length >= tap
        total += g * tl.load(x + (row - tap).to(tl.int64) * n + channel, inside & (channel < n), 0.0).to(tl.float32)
    tl.atomic_add(dw + tap * n + channel, total)


class Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        ctx.save_for_backward(x, w)
        y = torch.empty_like(x)
        convolve[(BATCH, LENGTH // 32, WIDTH // 128)](y, x, w, LENGTH, WIDTH, TAPS, False, 32, 128, num_warps=4)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        x, w = ctx.saved_tensors
        dy = dy.contiguous()
        dx, dw = torch.empty_like(x), torch.zeros(TAPS, WIDTH, device=x.device)
        convolve[(BATCH, LENGTH // 32, WIDTH // 128)](dx, dy, w, LENGTH, WIDTH, TAPS, True, 32, 128, num_warps=4)
        weights[(BATCH * LENGTH // 256 * TAPS, WIDTH // 512)](dw, dy, x, LENGTH, WIDTH, TAPS, 256, 512, num_warps=4)
        return dx, dw.bfloat16()


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.taps = nn.Parameter(torch.randn(TAPS, WIDTH))
        self.both, self.out = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value, gate = self.both(self.n1(x)).chunk(2, -1)
        x = x + self.out(Convolution.apply(value.contiguous(), self.taps) * torch.sigmoid(gate))
        return x + self.down(F.gelu(self.up(self.n2(x))))


if __name__ == "__main__":
    timed("short_convolutions", language(Layer, LAYERS, WIDTH, WORDS, (BATCH, LENGTH)))

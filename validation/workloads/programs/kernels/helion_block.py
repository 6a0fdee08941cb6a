"""A decoder of 6 layers whose norm and gate are Helion kernels with fixed configurations (forward; backward by torch)."""

from typing import Any

import helion
import helion.language as hl
import torch
import torch.nn as nn
import torch.nn.functional as F

from validation.workloads.programs.steps import language, timed

WIDTH, HEADS, INNER, LAYERS, WORDS, BATCH, LENGTH = 2048, 16, 5632, 6, 32000, 8, 2048


@helion.kernel(config=helion.Config(block_sizes=[2], num_warps=8), static_shapes=True)
def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        v = x[rows, :].to(torch.float32)
        r = torch.rsqrt(torch.mean(v * v, dim=-1) + 1e-6)
        y[rows, :] = (v * r[:, None] * w[:].to(torch.float32)).to(x.dtype)
    return y


@helion.kernel(config=helion.Config(block_sizes=[4, 512], num_warps=4), static_shapes=True)
def gated(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(a)
    for rows, columns in hl.tile(a.size()):
        v = a[rows, columns].to(torch.float32)
        y[rows, columns] = (v * torch.sigmoid(v) * b[rows, columns].to(torch.float32)).to(a.dtype)
    return y


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        ctx.save_for_backward(x, w)
        return norm(x.view(-1, WIDTH), w).view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        x, w = ctx.saved_tensors
        with torch.enable_grad():
            x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
            return torch.autograd.grad(F.rms_norm(x, (WIDTH,), w, 1e-6), (x, w), dy)


class Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Any, b: Any) -> Any:
        ctx.save_for_backward(a, b)
        return gated(a.view(-1, INNER), b.view(-1, INNER)).view_as(a)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        a, b = ctx.saved_tensors
        s = torch.sigmoid(a)
        return dy * b * s * (1 + a * (1 - s)), dy * a * s


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(WIDTH))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = Norm.apply(x, self.w1)
        q, k, v = (t.reshape(BATCH, LENGTH, HEADS, -1).transpose(1, 2) for t in self.qkv(h).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.out(a)
        h = Norm.apply(x, self.w2)
        return x + self.down(Gated.apply(self.gate(h), self.up(h)))


if __name__ == "__main__":
    timed("helion_block", language(Layer, LAYERS, WIDTH, WORDS, (BATCH, LENGTH)))

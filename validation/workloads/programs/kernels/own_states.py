"""A gated linear recurrence (h = a h + b, over 2,048 words) as tl.associative_scan in Triton, forward and backward; Lion in Triton."""

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl

from validation.workloads.programs.steps import timed

WIDTH, LAYERS, WORDS, BATCH, LENGTH = 1536, 10, 32000, 8, 2048


@triton.jit
def combine(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


@triton.jit
def recurrence(h, a, b, T, C, REVERSE: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr):
    """One program: BC channels of one sequence, BT words at a time."""
    batch, c = tl.program_id(0).to(tl.int64), tl.program_id(1) * BC + tl.arange(0, BC)
    carry = tl.zeros([BC], tl.float32)
    for start in range(0, T, BT):
        t = start + tl.arange(0, BT)
        if REVERSE:
            t = T - 1 - t
        at = (batch * T + t[:, None]) * C + c[None, :]
        x, y = tl.load(a + at).to(tl.float32), tl.load(b + at).to(tl.float32)
        p, s = tl.associative_scan((x, y), 0, combine)
        s += p * carry[None, :]
        tl.store(h + at, s.to(tl.bfloat16))
        carry = tl.sum(tl.where(tl.arange(0, BT)[:, None] == BT - 1, s, 0.0), 0)


@triton.jit
def lion(p, g, m, n, lr, decay, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    w = tl.load(p + at, at < n).to(tl.float32)
    d = tl.load(g + at, at < n).to(tl.float32)
    v = tl.load(m + at, at < n)
    u = v * 0.9 + d * 0.1
    w = w * (1 - lr * decay) - lr * tl.where(u > 0, 1.0, tl.where(u < 0, -1.0, 0.0))
    tl.store(p + at, w.to(tl.bfloat16), at < n)
    tl.store(m + at, v * 0.99 + d * 0.01, at < n)


def scanned(a: torch.Tensor, b: torch.Tensor, reverse: bool) -> torch.Tensor:
    h = torch.empty_like(b)
    recurrence[(BATCH, WIDTH // 64)](h, a, b, LENGTH, WIDTH, REVERSE=reverse, BT=64, BC=64, num_warps=4)
    return h


class Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Any, b: Any) -> Any:
        h = scanned(a, b, False)
        ctx.save_for_backward(a, h)
        return h

    @staticmethod
    def backward(ctx: Any, dh: Any) -> Any:
        a, h = ctx.saved_tensors
        later = torch.cat((a[:, 1:], torch.zeros_like(a[:, :1])), 1)
        db = scanned(later, dh.contiguous(), True)
        return db * F.pad(h[:, :-1], (0, 0, 1, 0)), db


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.gates, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        forget, value, gate = self.gates(self.one(x)).chunk(3, -1)
        a = torch.sigmoid(forget)
        h = Recurrence.apply(a, (1 - a) * value)
        x = x + self.out(h * F.silu(gate))
        return x + self.down(F.gelu(self.up(self.two(x)), approximate="tanh"))


torch.manual_seed(0)
torch.set_default_device("cuda")
embed, head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
model = nn.ModuleList([embed, head, *(Layer() for _ in range(LAYERS))]).bfloat16()
moments = [torch.zeros_like(p, dtype=torch.float32) for p in model.parameters()]
ids = torch.randint(0, WORDS, (BATCH, LENGTH))


def step() -> None:
    x = embed(ids)
    for layer in model[2:]:
        x = layer(x)
    F.cross_entropy(head(x).view(-1, WORDS), ids.view(-1)).backward()
    with torch.no_grad():
        for p, m in zip(model.parameters(), moments, strict=True):
            lion[(triton.cdiv(p.numel(), 4096),)](p, p.grad, m, p.numel(), 1e-4, 0.1, BLOCK=4096, num_warps=8)
            p.grad = None


timed("own_states", step)

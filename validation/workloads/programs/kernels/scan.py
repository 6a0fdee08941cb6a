"""Selective state spaces: 8 layers with a short convolution and a scan over time in Triton, one program per few channels."""

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl

from validation.workloads.programs.steps import language, timed

WIDTH, INNER, STATE, LAYERS, WORDS, BATCH, LENGTH = 1024, 2048, 16, 8, 32000, 4, 2048
BLOCK = 16


@triton.jit
def scan_forward(
    y, states, x, dt, a, b, c, length, inner, BLOCK: tl.constexpr, STATE: tl.constexpr, EVERY: tl.constexpr
):
    batch, channel, s = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, STATE)
    decay = tl.load(a + channel[:, None] * STATE + s[None, :])
    h = tl.zeros([BLOCK, STATE], tl.float32)
    for t in range(length):
        if t % EVERY == 0:
            kept = ((batch * (length // EVERY) + t // EVERY) * inner + channel[:, None]) * STATE + s[None, :]
            tl.store(states + kept, h)
        at = (batch * length + t) * inner + channel
        step = tl.load(dt + at).to(tl.float32)
        into = tl.load(b + (batch * length + t) * STATE + s).to(tl.float32)
        out = tl.load(c + (batch * length + t) * STATE + s).to(tl.float32)
        h = tl.exp(step[:, None] * decay) * h + (step * tl.load(x + at).to(tl.float32))[:, None] * into[None, :]
        tl.store(y + at, tl.sum(h * out[None, :], 1))


@triton.jit
def scan_backward(
    dx,
    ddt,
    db,
    dc,
    dy,
    states,
    x,
    dt,
    a,
    b,
    c,
    length,
    inner,
    BLOCK: tl.constexpr,
    STATE: tl.constexpr,
    EVERY: tl.constexpr,
):
    """Backward in time; the state of a step is taken for the one kept at the start of its stretch (a timing model, not a gradient)."""
    batch, channel, s = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, STATE)
    decay = tl.load(a + channel[:, None] * STATE + s[None, :])
    g = tl.zeros([BLOCK, STATE], tl.float32)
    for back in range(length):
        t = length - 1 - back
        at, line = (batch * length + t) * inner + channel, (batch * length + t) * STATE + s
        kept = ((batch * (length // EVERY) + t // EVERY) * inner + channel[:, None]) * STATE + s[None, :]
        h = tl.load(states + kept)
        step, up = tl.load(dt + at).to(tl.float32), tl.load(dy + at).to(tl.float32)
        into, out = tl.load(b + line).to(tl.float32), tl.load(c + line).to(tl.float32)
        g += up[:, None] * out[None, :]
        v = tl.load(x + at).to(tl.float32)
        tl.store(dx + at, tl.sum(g * into[None, :], 1) * step)
        tl.store(ddt + at, tl.sum(g * h * decay, 1) + tl.sum(g * into[None, :], 1) * v)
        tl.atomic_add(db + line, tl.sum(g * (step * v)[:, None], 0))
        tl.atomic_add(dc + line, tl.sum(h * up[:, None], 0))
        g = g * tl.exp(step[:, None] * decay)


class Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, dt: Any, a: Any, b: Any, c: Any) -> Any:
        y = torch.empty_like(x)
        states = torch.empty(BATCH, LENGTH // 64, INNER, STATE, device=x.device)
        scan_forward[(INNER // BLOCK, BATCH)](
            y, states, x, dt, a, b, c, LENGTH, INNER, BLOCK=BLOCK, STATE=STATE, EVERY=64, num_warps=2
        )
        ctx.save_for_backward(states, x, dt, a, b, c)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        states, x, dt, a, b, c = ctx.saved_tensors
        dx, ddt = torch.empty_like(x), torch.empty_like(dt)
        db, dc = torch.zeros(b.shape, device=x.device), torch.zeros(c.shape, device=x.device)
        scan_backward[(INNER // BLOCK, BATCH)](
            dx,
            ddt,
            db,
            dc,
            dy.contiguous(),
            states,
            x,
            dt,
            a,
            b,
            c,
            LENGTH,
            INNER,
            BLOCK=BLOCK,
            STATE=STATE,
            EVERY=64,
            num_warps=2,
        )
        return dx, ddt, None, db.to(b.dtype), dc.to(c.dtype)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.into = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 2 * INNER, bias=False)
        self.convolution = nn.Conv1d(INNER, INNER, 4, groups=INNER, padding=3)
        self.select, self.step = nn.Linear(INNER, 2 * STATE + 64, bias=False), nn.Linear(64, INNER)
        self.register_buffer("decay", -torch.rand(INNER, STATE))
        self.out = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, gate = self.into(self.norm(x)).chunk(2, -1)
        h = F.silu(self.convolution(h.transpose(1, 2))[..., :LENGTH].transpose(1, 2)).contiguous()
        b, c, low = self.select(h).split([STATE, STATE, 64], -1)
        y = Scan.apply(h, F.softplus(self.step(low)), self.decay.float(), b.contiguous(), c.contiguous())
        return x + self.out(y * F.silu(gate))


if __name__ == "__main__":
    timed("scan", language(Layer, LAYERS, WIDTH, WORDS, (BATCH, LENGTH)))

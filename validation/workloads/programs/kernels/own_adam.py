"""A ViT-L whose optimizer is one Triton kernel over all parameters: AdamW in bfloat16 with stochastic rounding, and an average."""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torchvision.models import vit_l_16

from validation.workloads.programs.steps import timed

BLOCK = 2048


@triton.jit
def adamw(p, average, m, v, g, count, seed, correction1, correction2, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    grad, value = tl.load(g + at, mask).to(tl.float32), tl.load(p + at, mask).to(tl.float32)
    first = 0.9 * tl.load(m + at, mask).to(tl.float32) + 0.1 * grad
    second = 0.95 * tl.load(v + at, mask) + 0.05 * grad * grad
    value -= 1e-4 * (first / correction1 / (tl.sqrt(second / correction2) + 1e-8) + 0.1 * value)
    bits = value.to(tl.int32, bitcast=True) + (tl.randint(seed, at.to(tl.int32)).to(tl.int32) & 0xFFFF)
    tl.store(p + at, bits.to(tl.float32, bitcast=True).to(tl.bfloat16), mask)
    tl.store(m + at, first.to(tl.bfloat16), mask)
    tl.store(v + at, second, mask)
    kept = tl.load(average + at, mask)
    tl.store(average + at, kept + 0.001 * (value - kept), mask)


torch.manual_seed(0)
model = vit_l_16().to("cuda", torch.bfloat16).train()
parameters = list(model.parameters())
flat = torch.cat([p.detach().flatten() for p in parameters])
grads = torch.zeros_like(flat)
at = 0
for p in parameters:
    p.data, p.grad = flat[at : at + p.numel()].view_as(p), grads[at : at + p.numel()].view_as(p)
    at += p.numel()
average, m, v = flat.float(), torch.zeros_like(flat), torch.zeros_like(flat, dtype=torch.float32)
x, y = torch.randn(64, 3, 224, 224, device="cuda", dtype=torch.bfloat16), torch.randint(0, 1000, (64,), device="cuda")
steps = 0


def step() -> None:
    global steps
    steps += 1
    F.cross_entropy(model(x).float(), y).backward()
    adamw[(triton.cdiv(at, BLOCK),)](flat, average, m, v, grads, at, steps, 1 - 0.9**steps, 1 - 0.95**steps, BLOCK, num_warps=8)
    grads.zero_()


timed("own_adam", step)

"""A decoder of 6 layers whose Adam keeps all in bfloat16 and rounds by chance, in a Triton kernel with random numbers."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl

from validation.workloads.programs.steps import timed

WIDTH, HEADS, LAYERS, WORDS, BATCH, LENGTH = 2560, 20, 6, 50304, 4, 2048


@triton.jit
def rounded(v, noise):
    bits = v.to(tl.uint32, bitcast=True) + (noise & 0xFFFF).to(tl.uint32)
    return (bits & 0xFFFF0000).to(tl.float32, bitcast=True).to(tl.bfloat16)


@triton.jit
def adam(w, g, m, v, n, step, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    gradient = tl.load(g + at, inside, 0.0).to(tl.float32)
    first = 0.9 * tl.load(m + at, inside, 0.0).to(tl.float32) + 0.1 * gradient
    second = 0.95 * tl.load(v + at, inside, 0.0).to(tl.float32) + 0.05 * gradient * gradient
    change = first / (tl.sqrt(second) + 1e-8)
    a, b, c, _ = tl.randint4x(seed, at)
    tl.store(m + at, rounded(first, a), inside)
    tl.store(v + at, rounded(second, b), inside)
    old = tl.load(w + at, inside, 0.0).to(tl.float32)
    tl.store(w + at, rounded(old - 1e-4 * change - 1e-6 * old, c), inside)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.reshape(BATCH, LENGTH, HEADS, -1).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.out(a)
        return x + self.down(F.silu(self.up(self.n2(x))))


torch.manual_seed(0)
torch.set_default_device("cuda")
embed, head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
model = nn.ModuleList([embed, head, *(Layer() for _ in range(LAYERS))]).bfloat16()
moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()]
ids = torch.randint(0, WORDS, (BATCH, LENGTH))
count = 0


def step() -> None:
    global count
    x = embed(ids)
    for layer in model[2:]:
        x = layer(x)
    F.cross_entropy(head(x).view(-1, WORDS), ids.view(-1)).backward()
    count += 1
    for p, (m, v) in zip(model.parameters(), moments, strict=True):
        adam[(triton.cdiv(p.numel(), 1024),)](p, p.grad, m, v, p.numel(), count, 1000 + count, BLOCK=1024)
        p.grad = None


timed("rounded_adam", step)

"""A GPT with LoRA whose layers are operators of the program's own (torch.library.custom_op): products and a Triton kernel inside."""

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl

from validation.workloads.programs.steps import timed

WIDTH, HEADS, LAYERS, WORDS, BATCH, LENGTH, RANK = 2048, 16, 12, 32000, 4, 2048, 16


@triton.jit
def add_scaled(y, z, n, scale, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(y + at, at < n).to(tl.float32) + scale * tl.load(z + at, at < n).to(tl.float32)
    tl.store(y + at, v.to(tl.bfloat16), at < n)


@torch.library.custom_op("own::lora", mutates_args=())
def lora(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y, z = x @ w.t(), (x @ a.t()) @ b.t()
    add_scaled[(triton.cdiv(y.numel(), 2048),)](y, z, y.numel(), 2.0, BLOCK=2048)
    return y


@torch.library.custom_op("own::lora_backward", mutates_args=())
def lora_backward(
    dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    low = dy @ b
    dx, more = dy @ w, low @ a
    add_scaled[(triton.cdiv(dx.numel(), 2048),)](dx, more, dx.numel(), 2.0, BLOCK=2048)
    return dx, 2.0 * (low.t() @ x), 2.0 * (dy.t() @ (x @ a.t()))


def keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def back(ctx: Any, dy: Any) -> Any:
    dx, da, db = lora_backward(dy.contiguous(), *ctx.saved_tensors)
    return dx, None, da, db


lora.register_autograd(back, setup_context=keep)


class Low(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(outputs, inputs) * 0.02, requires_grad=False)
        self.a, self.b = nn.Parameter(torch.randn(RANK, inputs) * 0.02), nn.Parameter(torch.zeros(outputs, RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return lora(x.reshape(-1, x.shape[-1]), self.w, self.a, self.b).view(*x.shape[:-1], -1)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out, self.up, self.down = Low(WIDTH, 3 * WIDTH), Low(WIDTH, WIDTH), Low(WIDTH, 4 * WIDTH), Low(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.reshape(BATCH, LENGTH, HEADS, -1).transpose(1, 2) for t in self.qkv(self.one(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.out(a)
        return x + self.down(F.silu(self.up(self.two(x))))


torch.manual_seed(0)
torch.set_default_device("cuda")
embed, head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
model = nn.ModuleList([embed, head, *(Layer() for _ in range(LAYERS))]).bfloat16()
trained = [p for n, p in model.named_parameters() if p.requires_grad and ("a" in n.split(".")[-1:] or "b" in n.split(".")[-1:])]
optimizer = torch.optim.AdamW(trained, lr=1e-4)
ids = torch.randint(0, WORDS, (BATCH, LENGTH))


def step() -> None:
    x = embed(ids).requires_grad_()
    for layer in model[2:]:
        x = layer(x)
    F.cross_entropy(head(x).view(-1, WORDS), ids.view(-1)).backward()
    optimizer.step()
    optimizer.zero_grad()


timed("own_operators", step)

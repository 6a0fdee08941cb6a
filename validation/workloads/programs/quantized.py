"""Low precision by torchao and bitsandbytes: 8-bit optimizers (`adamw_8bit_torchao`, `adamw_8bit_bitsandbytes`), frozen
weights (`llm_int8`, `qlora`), products (`float8_mlp`, `float8_rows`)."""

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

from validation.workloads.programs.layers import Block, GatedBlock
from validation.workloads.programs.steps import Step, decoder, fused_adamw, main, next_word, trained


def under(optimizer: Any) -> Step:
    """A GPT of 12 layers under an AdamW with 8-bit states."""
    width, heads, words, batch, length = 1536, 12, 50304, 8, 1024
    torch.set_default_device("cuda")
    model = decoder(lambda: Block(width, heads), 12, width, words)
    ids = torch.randint(0, words, (batch, length))
    return trained(optimizer(model.parameters(), lr=1e-4), next_word(model, ids))


def adamw_8bit_torchao() -> Step:
    """States of torchao."""
    from torchao.optim import AdamW8bit

    return under(AdamW8bit)


def adamw_8bit_bitsandbytes() -> Step:
    """States of bitsandbytes."""
    from bitsandbytes.optim import AdamW8bit

    return under(AdamW8bit)


def llm_int8() -> Step:
    """LoRA on 6 frozen layers in bitsandbytes' int8 (LLM.int8 without a threshold for outliers)."""
    import bitsandbytes as bnb

    width, heads, inner, batch, length, low = 2560, 20, 6912, 16, 1024, 16

    class Adapted(nn.Module):
        def __init__(self, n: int, m: int) -> None:
            super().__init__()
            self.frozen = bnb.nn.Linear8bitLt(n, m, bias=False, has_fp16_weights=False, threshold=0.0)
            self.a = nn.Parameter(torch.randn(low, n, dtype=torch.bfloat16) * 0.01)
            self.b = nn.Parameter(torch.zeros(m, low, dtype=torch.bfloat16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.frozen(x).to(x.dtype) + F.linear(F.linear(x, self.a), self.b)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n1, self.n2 = nn.RMSNorm(width, dtype=torch.bfloat16), nn.RMSNorm(width, dtype=torch.bfloat16)
            self.qkv, self.out = Adapted(width, 3 * width), Adapted(width, width)
            self.up, self.down = Adapted(width, 2 * inner), Adapted(inner, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (t.reshape(batch, length, heads, -1).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1))
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(a.transpose(1, 2).reshape(batch, length, width))
            a, b = self.up(self.n2(x)).chunk(2, -1)
            return x + self.down(F.silu(a) * b)

    model = nn.Sequential(*(Layer() for _ in range(6))).cuda()
    x = torch.randn(batch, length, width, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    return trained(fused_adamw(model), lambda: model(x).float().square().mean())


def qlora() -> Step:
    """Eight Llama layers with bitsandbytes' 4-bit weights and LoRA's adapters; only these are trained."""
    import bitsandbytes as bnb

    width, heads, inner, rank, words, batch, length = 4096, 32, 11008, 16, 32000, 2, 2048

    class Adapted(nn.Module):
        def __init__(self, into: int, out: int) -> None:
            super().__init__()
            self.base = bnb.nn.Linear4bit(into, out, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4")
            self.a, self.b = nn.Linear(into, rank, bias=False), nn.Linear(rank, out, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.base(x) + self.b(self.a(x))

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n1, self.n2 = nn.RMSNorm(width), nn.RMSNorm(width)
            self.q, self.k, self.v, self.o = (Adapted(width, width) for _ in range(4))
            self.gate, self.up, self.down = Adapted(width, inner), Adapted(width, inner), Adapted(inner, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.n1(x)
            q, k, v = (w(h).view(batch, length, heads, -1).transpose(1, 2) for w in (self.q, self.k, self.v))
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o(a.transpose(1, 2).reshape(batch, length, width))
            h = self.n2(x)
            return x + self.down(F.silu(self.gate(h)) * self.up(h))

    model = nn.ModuleList([nn.Embedding(words, width), nn.Linear(width, words, bias=False)])
    for _ in range(8):  # weights are packed when they come to the GPU
        model.append(Layer().bfloat16().cuda())
    model[:2].bfloat16().cuda()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith(("a.weight", "b.weight")) and parameter.is_floating_point())
    ids = torch.randint(0, words, (batch, length), device="cuda")
    return trained(fused_adamw(model), next_word(model, ids))


def float8_mlp() -> Step:
    """Six gated MLPs whose products are torchao's float8 (one scale a tensor), compiled."""
    from torchao.float8 import convert_to_float8_training

    width, inner, tokens = 4096, 11008, 8192

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.RMSNorm(width)
            self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
            self.down = nn.Linear(inner, width, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.norm(x)
            return x + self.down(F.silu(self.gate(h)) * self.up(h))

    torch.set_default_device("cuda")
    model = nn.Sequential(*(Layer() for _ in range(6))).bfloat16()
    convert_to_float8_training(model)
    for layer in model:
        layer.compile()
    x = torch.randn(tokens, width, dtype=torch.bfloat16)
    return trained(fused_adamw(model), lambda: model(x).square().mean())


def float8_rows() -> Step:
    """A decoder of 5 layers whose products are torchao's float8 with a scale for each row, compiled layer by layer."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    width, heads, inner, words, batch, length = 3072, 24, 8192, 32000, 4, 2048
    torch.set_default_device("cuda")
    model = decoder(lambda: GatedBlock(width, heads, inner), 5, width, words)
    for layer in model[2:]:
        convert_to_float8_training(layer, config=Float8LinearConfig.from_recipe_name("rowwise"))
        layer.compile()
    ids = torch.randint(0, words, (batch, length))
    return trained(fused_adamw(model), next_word(model, ids))


if __name__ == "__main__":
    main(adamw_8bit_torchao, adamw_8bit_bitsandbytes, llm_int8, qlora, float8_mlp, float8_rows)

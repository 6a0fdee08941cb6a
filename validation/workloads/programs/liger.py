"""Language models with Liger's Triton kernels: `liger_llama`, `liger_gemma`, `liger_qwen`, `liger_dpo`."""

from typing import Any

import torch
import torch.nn as nn

from validation.workloads.programs.layers import GatedBlock, causal
from validation.workloads.programs.steps import Step, decoder, fused_adamw, hidden, main


def liger_llama() -> Step:
    """A Llama of 8 layers whose norms, positions, gates and loss are Liger's."""
    from liger_kernel.ops import (
        LigerFusedLinearCrossEntropyFunction,
        LigerRMSNormFunction,
        LigerRopeFunction,
        LigerSiLUMulFunction,
    )

    width, heads, inner, words, batch, length = 2048, 16, 5632, 32000, 4, 2048

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return LigerRMSNormFunction.apply(x, self.weight, 1e-6, 0.0, "llama", False)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k = LigerRopeFunction.apply(q, k, cos, sin)
        return causal(q, k, v)

    def layer() -> GatedBlock:
        return GatedBlock(width, heads, inner, attend, lambda _: Norm(), LigerSiLUMulFunction.apply)

    torch.set_default_device("cuda")
    model, last = decoder(layer, 8, width, words), Norm().bfloat16()
    ids = torch.randint(0, words, (batch, length))
    angles = torch.outer(torch.arange(length).float(), 1e4 ** -(torch.arange(0, 128, 2).float() / 128)).repeat(1, 2)
    cos, sin = angles.cos().bfloat16()[None], angles.sin().bfloat16()[None]

    optimizer, head = fused_adamw(nn.ModuleList([model, last])), model[1]

    def step() -> None:
        x = hidden(model, ids)
        loss = LigerFusedLinearCrossEntropyFunction.apply(last(x).view(-1, width), head.weight, ids.view(-1))[0]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def of_transformers(model: Any, batch: int, length: int, words: int, clip: float = 0.0) -> Step:
    """A step of a causal language model of transformers, with its own loss."""
    model = model.to("cuda", torch.bfloat16).train()
    optimizer = fused_adamw(model)
    ids = torch.randint(0, words, (batch, length), device="cuda")

    def step() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()

    return step


def liger_gemma() -> Step:
    """Gemma 2 of 6 layers: the norm with an offset, GeGLU, the capped fused loss."""
    from liger_kernel.transformers import apply_liger_kernel_to_gemma2
    from transformers import Gemma2Config, Gemma2ForCausalLM

    apply_liger_kernel_to_gemma2()
    config = Gemma2Config(
        hidden_size=2304, intermediate_size=9216, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=4,
        head_dim=256, vocab_size=64000, use_cache=False,
    )
    return of_transformers(Gemma2ForCausalLM(config), 4, 2048, 64000)


def liger_qwen() -> Step:
    """Qwen3 of 8 layers."""
    from liger_kernel.transformers import apply_liger_kernel_to_qwen3
    from transformers import Qwen3Config, Qwen3ForCausalLM

    apply_liger_kernel_to_qwen3()
    config = Qwen3Config(
        hidden_size=1536, intermediate_size=4608, num_hidden_layers=8, num_attention_heads=12, num_key_value_heads=4,
        head_dim=128, vocab_size=65536, use_cache=False,
    )
    return of_transformers(Qwen3ForCausalLM(config), 6, 2048, 65536, clip=1.0)


def liger_dpo() -> Step:
    """Direct preference optimization: the fused, chunked loss, norm and gate; a frozen reference model."""
    from liger_kernel.chunked_loss import LigerFusedLinearDPOLoss
    from liger_kernel.ops import LigerSiLUMulFunction
    from liger_kernel.transformers import LigerRMSNorm

    width, heads, inner, words, pairs, length = 2048, 16, 5632, 64000, 4, 1024

    def layer() -> GatedBlock:
        return GatedBlock(width, heads, inner, norm=LigerRMSNorm, gate=LigerSiLUMulFunction.apply)

    torch.set_default_device("cuda")
    policy, reference = (decoder(layer, 5, width, words) for _ in range(2))
    reference.requires_grad_(False)
    loss_of = LigerFusedLinearDPOLoss(compiled=False)
    ids = torch.randint(0, words, (2 * pairs, length))

    optimizer = fused_adamw(policy, 1e-5)

    def step() -> None:
        with torch.no_grad():
            old = hidden(reference, ids)
        loss, *_ = loss_of(policy[1].weight, hidden(policy, ids), ids, ref_input=old, ref_weight=reference[1].weight)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    main(liger_llama, liger_gemma, liger_qwen, liger_dpo)

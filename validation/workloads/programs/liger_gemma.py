"""Gemma 2 of transformers, 6 layers, with Liger's kernels (its norm with an offset, GeGLU, capped fused loss)."""

import torch
from liger_kernel.transformers import apply_liger_kernel_to_gemma2
from transformers import Gemma2Config, Gemma2ForCausalLM

from steps import timed

BATCH, LENGTH = 4, 2048

torch.manual_seed(0)
apply_liger_kernel_to_gemma2()
config = Gemma2Config(
    hidden_size=2304, intermediate_size=9216, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=4,
    head_dim=256, vocab_size=64000, use_cache=False,
)  # fmt: skip
model = Gemma2ForCausalLM(config).to("cuda", torch.bfloat16).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
ids = torch.randint(0, 64000, (BATCH, LENGTH), device="cuda")


def step() -> None:
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


timed("liger_gemma", step)

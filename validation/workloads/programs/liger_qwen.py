"""Qwen3 of transformers, 8 layers, with Liger's kernels put into it as its users do."""

import torch
from liger_kernel.transformers import apply_liger_kernel_to_qwen3
from transformers import Qwen3Config, Qwen3ForCausalLM

from steps import timed

BATCH, LENGTH = 6, 2048

torch.manual_seed(0)
apply_liger_kernel_to_qwen3()
config = Qwen3Config(
    hidden_size=1536, intermediate_size=4608, num_hidden_layers=8, num_attention_heads=12, num_key_value_heads=4,
    head_dim=128, vocab_size=65536, use_cache=False,
)  # fmt: skip
model = Qwen3ForCausalLM(config).to("cuda", torch.bfloat16).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
ids = torch.randint(0, 65536, (BATCH, LENGTH), device="cuda")


def step() -> None:
    model(input_ids=ids, labels=ids).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


timed("liger_qwen", step)

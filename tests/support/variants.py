"""One small GPT in many variants, each differing from the first by one change, one per rank and without process groups.

Run by tests/integration/test_differences.py, which compares the ranks' steps by `phantora diff`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, gelu, relu, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS, LENGTH, VOCABULARY, STEPS = 512, 8, 512, 8192, 5


@dataclass(frozen=True)
class Variant:
    layers: int = 3
    batch: int = 4
    micro_batches: int = 1
    optimizer: str = "AdamW"
    form: str = "foreach"
    clip: bool = False
    dropout: float = 0.0
    autocast: bool = False
    float32: bool = False
    recompute: bool = False
    frozen: int = 0
    keep_gradients: bool = False
    pinned: bool = False
    reads: bool = False
    relu: bool = False
    attention: SDPBackend | None = None


# By what the first line of the comparison with the first must say.
VARIANTS = {
    "": Variant(),
    "more layers: 3 -> 5": Variant(layers=5),
    "batch 4 -> 2": Variant(batch=2),
    "batch 4 -> 2 and more micro-batches: 1 -> 2 a step": Variant(batch=2, micro_batches=2),
    "more micro-batches: 1 -> 2 a step": Variant(micro_batches=2),
    "another optimizer: AdamW -> SGD": Variant(optimizer="SGD"),
    "another optimizer: AdamW -> Adafactor": Variant(optimizer="Adafactor"),
    "another form of the optimizer: foreach -> fused": Variant(form="fused"),
    "another form of the optimizer: foreach -> for each parameter": Variant(form=""),
    "gradients are clipped": Variant(clip=True),
    "dropout on": Variant(dropout=0.1),
    "parameters held in fp32 instead of bf16": Variant(autocast=True, float32=True),
    "precision of products bf16 -> fp32": Variant(float32=True),
    "activation checkpointing on": Variant(recompute=True),
    "fewer parameters are trained: 35 -> 12 tensors": Variant(frozen=2),
    "gradients are zeroed and added to": Variant(keep_gradients=True),
    "data comes from pinned instead of pageable memory of the host": Variant(pinned=True),
    "the host reads values of the GPU 0 -> 1 times a step": Variant(reads=True),
    "attention by another operator: _cudnn_attention_forward -> products and a softmax": Variant(
        attention=SDPBackend.MATH
    ),
    "other operators: -aten::gelu_backward": Variant(relu=True),
}


class Block(nn.Module):
    def __init__(self, variant: Variant) -> None:
        super().__init__()
        self.variant = variant
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH, bias=False)
        self.dropout = nn.Dropout(variant.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.first(x)).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.dropout(self.out(seen))
        act = relu if self.variant.relu else gelu
        return x + self.dropout(self.down(act(self.up(self.second(x)))))


class Model(nn.Module):
    def __init__(self, variant: Variant) -> None:
        super().__init__()
        self.variant = variant
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(variant) for _ in range(variant.layers))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.variant.recompute else block(x)
        return cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


def run(variant: Variant) -> None:
    model = Model(variant).cuda()
    if not variant.float32:
        model = model.bfloat16()
    for block in model.blocks[: variant.frozen]:
        block.requires_grad_(False)
    model.table.requires_grad_(not variant.frozen)
    trained = [p for p in model.parameters() if p.requires_grad]
    options = {"fused": True} if variant.form == "fused" else {"foreach": variant.form == "foreach"}
    optimizer = getattr(torch.optim, variant.optimizer)(trained, lr=1e-3, **options)
    tokens = torch.randint(VOCABULARY, (variant.batch, LENGTH), pin_memory=variant.pinned)
    kernel = sdpa_kernel(variant.attention) if variant.attention else contextlib.nullcontext()
    with kernel:
        for _ in range(STEPS):
            for _ in range(variant.micro_batches):
                with torch.autocast("cuda", torch.bfloat16, enabled=variant.autocast):
                    loss = model(tokens.to("cuda", non_blocking=variant.pinned))
                loss.backward()
            if variant.clip:
                nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=not variant.keep_gradients)
            if variant.reads:
                loss.item()
    torch.cuda.synchronize()


if __name__ == "__main__":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    run(list(VARIANTS.values())[int(os.environ["RANK"])])
    sys.exit()

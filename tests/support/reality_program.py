"""A small transformer under DDP that changes by its first argument: what differs between a real and a simulated run."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

WIDTH, LENGTH, BATCH, STEPS, LAYERS = 1024, 1024, 16, 5, 3


class Block(nn.Module):
    def __init__(self, variant: str) -> None:
        super().__init__()
        self.variant = variant
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 16, -1).permute(2, 0, 3, 1, 4)
        with sdpa_kernel(SDPBackend.MATH) if self.variant == "attention" else nullcontext():
            seen = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.wide(x)


def main(variant: str) -> None:
    dist.init_process_group("nccl")
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    blocks = nn.Sequential(*[Block(variant) for _ in range(LAYERS)]).cuda().bfloat16()
    model = DistributedDataParallel(blocks, device_ids=[rank])
    fused = variant != "fusion"
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused, foreach=None if fused else False)
    for _ in DataLoader(torch.zeros(BATCH * STEPS, 4, dtype=torch.int64), batch_size=BATCH):  # type: ignore[arg-type]
        x = torch.randn(BATCH, LENGTH, WIDTH, device="cuda", dtype=torch.bfloat16)
        loss = model(x).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if variant == "reads":
            for parameter in model.parameters():
                parameter.sum().item()
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")

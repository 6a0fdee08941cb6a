"""Attention of 1 to 16 queries by each kernel that has it, as where tokens are generated or checked. To be traced and measured.

    phantora trace --cluster 1x1xH100 --missing missing.jsonl -o few.arrow -m validation.probes.few_queries
    phantora profile missing.jsonl --out few_h100.parquet      # on the GPU
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = ((1, 8), (1, 32), (4, 32), (16, 16), (32, 32))  # sequences, heads
KEYS = (128, 512, 1000, 2048, 8192)
QUERIES = (1, 4, 16)
LARGEST = 1 << 29  # bytes of keys


def main() -> None:
    torch.set_grad_enabled(False)
    kinds = [(SDPBackend.FLASH_ATTENTION, torch.bfloat16, 128), (SDPBackend.FLASH_ATTENTION, torch.bfloat16, 64),
             (SDPBackend.EFFICIENT_ATTENTION, torch.bfloat16, 128), (SDPBackend.EFFICIENT_ATTENTION, torch.float32, 64),
             (SDPBackend.CUDNN_ATTENTION, torch.bfloat16, 128)]  # fmt: skip
    for (batch, heads), keys, queries, (backend, dtype, head) in itertools.product(SHAPES, KEYS, QUERIES, kinds):
        if batch * heads * keys * head * dtype.itemsize > LARGEST:
            continue
        q = torch.empty(batch, heads, queries, head, device="cuda", dtype=dtype)
        k, v = (torch.empty(batch, heads, keys, head, device="cuda", dtype=dtype) for _ in range(2))
        with sdpa_kernel(backend):
            F.scaled_dot_product_attention(q, k, v)


if __name__ == "__main__":
    main()

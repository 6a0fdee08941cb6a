"""Products of few rows and attention of few queries, as where tokens are generated or checked. To be traced and measured.

    phantora trace --cluster 1x1xH100 --missing missing.jsonl -o decode.arrow -m validation.probes.decode_operators [queries]
    phantora profile missing.jsonl --out decode_h100.parquet      # on the GPU

`queries`: only attention of 1 to 16 queries, by each kernel that has it.
"""

from __future__ import annotations

import itertools
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BATCHES = (1, 2, 4, 8, 16, 24, 32, 64, 96, 128, 256)
LAYERS = (  # inputs and outputs of decoders' layers, whole or in parts
    (1024, 1024), (1024, 2816), (2816, 1024), (2048, 2048), (2048, 512), (2048, 5632), (5632, 2048), (2048, 8192), (8192, 2048),
    (3072, 3072), (3072, 8192), (8192, 3072), (4096, 4096), (4096, 1024), (4096, 6144), (4096, 11008), (11008, 4096), (4096, 14336),
    (14336, 4096), (4096, 12288), (4096, 32000), (4096, 128256), (4096, 7168), (7168, 4096), (4096, 2048), (2048, 4096),
    (5120, 5120), (5120, 13824), (13824, 5120), (8192, 8192), (8192, 1024), (8192, 28672), (28672, 8192), (8192, 10240),
    (8192, 3584), (3584, 8192), (8192, 1280), (7168, 7168), (7168, 2048),
)
HEADS = ((8, 8), (16, 16), (32, 32), (64, 64), (32, 8), (64, 8), (16, 2))  # of queries, of keys
LARGEST = 1 << 30  # bytes of keys
FEW_SHAPES = ((1, 8), (1, 32), (4, 32), (16, 16), (32, 32))  # sequences, heads
FEW_KEYS, FEW_QUERIES = (128, 512, 1000, 2048, 8192), (1, 4, 16)
FEW_KERNELS = (  # with the size of a head
    (SDPBackend.FLASH_ATTENTION, torch.bfloat16, 128), (SDPBackend.FLASH_ATTENTION, torch.bfloat16, 64),
    (SDPBackend.EFFICIENT_ATTENTION, torch.bfloat16, 128), (SDPBackend.EFFICIENT_ATTENTION, torch.float32, 64),
    (SDPBackend.CUDNN_ATTENTION, torch.bfloat16, 128),
)


def empty(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, device="cuda", dtype=torch.bfloat16)


def products() -> None:
    for rows in BATCHES:
        for inputs, outputs in LAYERS:
            F.linear(empty(rows, inputs), empty(outputs, inputs))
            if rows in (1, 8, 32) and inputs <= 4096 and outputs <= 11008:
                F.linear(empty(rows, inputs), empty(outputs, inputs), empty(outputs))


def attention(batch: int, heads: int, kv_heads: int, keys: int, head: int) -> None:
    q, k, v = empty(batch, heads, 1, head), empty(batch, kv_heads, keys, head), empty(batch, kv_heads, keys, head)
    F.scaled_dot_product_attention(q, k, v, enable_gqa=heads != kv_heads)
    if heads != kv_heads:
        return
    mask = torch.zeros(batch, 1, 1, keys, device="cuda", dtype=torch.bfloat16).expand(batch, heads, 1, keys)
    F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    if head == 128 and batch in (1, 4, 16, 64):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            F.scaled_dot_product_attention(q, k, v)
            F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def few_queries() -> None:
    """Attention of 1 to 16 queries, by each kernel that has it."""
    for (batch, heads), keys, queries, (backend, dtype, head) in itertools.product(FEW_SHAPES, FEW_KEYS, FEW_QUERIES, FEW_KERNELS):
        if batch * heads * keys * head * dtype.itemsize > LARGEST // 2:
            continue
        q = torch.empty(batch, heads, queries, head, device="cuda", dtype=dtype)
        k, v = (torch.empty(batch, heads, keys, head, device="cuda", dtype=dtype) for _ in range(2))
        with sdpa_kernel(backend):
            F.scaled_dot_product_attention(q, k, v)


def main() -> None:
    torch.set_grad_enabled(False)
    if sys.argv[1:] == ["queries"]:
        few_queries()
        return
    products()
    for batch in (1, 2, 4, 8, 16, 32, 64):
        for heads, kv_heads in HEADS:
            for keys in (128, 256, 512, 1024, 2048, 4096, 8192):
                for head in (64, 128):
                    rare = head == 64 and (keys in (256, 1024) or heads > 32)
                    if not rare and batch * heads * keys * head * 2 <= LARGEST:
                        attention(batch, heads, kv_heads, keys, head)


if __name__ == "__main__":
    main()

"""Convolutions in float32 with TF32 and without, and attention, with sizes drawn at random. `phantora trace --missing` lists them.

    phantora trace --missing FILE.jsonl --cluster 1x1xH200 -m validation.probes.precise_operators [SEED]

Most users leave TF32 off for products and on for convolutions, and benchmarks turn both off: each convolution here runs both
ways, forward and backward, transposed or not. Attention runs through each backend.
"""

from __future__ import annotations

import random
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from validation.probes.program_operators import BF16, FP16, FP32, MOST, Make, TooLarge, backward, make_all, near, randn

MOST_WORK = 1e11  # multiply-adds
WIDTHS = (3, 16, 32, 48, 64, 64, 96, 128, 128, 192, 256, 256, 384, 512)
BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)


def images(r: random.Random, module: type[nn.Module], dims: int) -> None:
    """Forward and backward of a layer, both ways."""
    channels, out, batch = r.choice(WIDTHS), r.choice(WIDTHS), r.choice((1, 2, 4, 8, 16, 16, 32, 64, 128))
    taps, stride = r.choice(((1, 1), (3, 1), (3, 1), (3, 1), (3, 2), (4, 2), (4, 2), (5, 1), (7, 1), (2, 2)))
    size = near(
        r, ((64, 256, 1024, 4096), (8, 14, 16, 28, 32, 32, 56, 64, 64, 96, 128, 128, 256), (8, 16, 32, 64))[dims - 1]
    )
    taken = (taps, taps + r.choice((2, 4))) if dims == 2 and taps == 3 and r.random() < 0.25 else taps
    grows = stride if "Transpose" in module.__name__ else 1 / stride
    if batch * size**dims * channels * out * taps**dims / (stride**dims if grows < 1 else 1) > MOST_WORK:
        raise TooLarge
    if batch * out * (size * grows) ** dims > MOST:
        raise TooLarge
    x = randn(batch, channels, *(size,) * dims)
    layer = module(
        channels,
        out,
        taken,
        stride,
        0 if taken != taps else taps // 2 if taps % 2 else (taps - stride) // 2,
        bias=False,
    ).cuda()
    if dims == 2 and r.random() < 0.15:
        x, layer = x.contiguous(memory_format=torch.channels_last), layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x.requires_grad_(channels > 3)
    for allowed in (False, True) if r.random() < 0.7 else (False,):
        torch.backends.cudnn.allow_tf32 = allowed
        backward(layer(x))
    torch.backends.cudnn.allow_tf32 = True


def layers(r: random.Random) -> None:
    """Plain convolutions."""
    dims = r.choice((1, 2, 2, 2, 3))
    images(r, (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1], dims)


def transposed(r: random.Random) -> None:
    """Transposed convolutions."""
    dims = r.choice((1, 2, 2, 2, 2, 3))
    images(r, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1], dims)


def attention(r: random.Random) -> None:
    """Forward and backward through a backend."""
    batch, heads = r.choice((1, 1, 2, 4, 8, 16, 32, 64)), r.choice((4, 8, 12, 16, 24, 32))
    length, head = (
        near(r, (64, 128, 197, 256, 512, 576, 1024, 1024, 2048, 4096, 4608)),
        r.choice((32, 64, 64, 64, 80, 96, 128, 128)),
    )
    if batch * heads * length * head > MOST or batch * heads * length**2 * head > 2e11:
        raise TooLarge
    dtype = r.choice((BF16, BF16, FP16))
    q, k, v = (randn(batch, heads, length, head, dtype=dtype, grad=True) for _ in range(3))
    causal = r.random() < 0.4
    for backend in BACKENDS:
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            if r.random() < 0.6:
                backward(out)


def linear(r: random.Random) -> None:
    """Products in float32 without TF32, and the passes over their results that networks of sines take."""
    rows, k, n = (
        near(r, (64, 256, 1024, 4096, 16384, 65536, 262144)),
        r.choice((2, 3, 63, 64, 128, 256, 256, 512, 1024)),
        r.choice((1, 3, 64, 128, 256, 256, 512, 1024)),
    )
    if rows * max(k, n) > MOST:
        raise TooLarge
    x, weight = randn(rows, k, dtype=FP32, grad=True), randn(n, k, dtype=FP32, grad=True)
    y = torch.sin(30 * F.linear(x, weight, torch.zeros(n, device="cuda", requires_grad=True)))
    first = torch.autograd.grad(y, (x,), torch.ones_like(y), create_graph=True)[0]
    torch.autograd.grad(first.square().mean(), (weight,))


COUNTS: dict[Make, int] = {transposed: 130, layers: 110, attention: 90, linear: 50}


if __name__ == "__main__":
    make_all(COUNTS, int(sys.argv[1]) if len(sys.argv) > 1 else 0)

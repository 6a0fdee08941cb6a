"""Layers of video networks, group norms and grouped convolutions of torch.func, drawn at random.

    phantora trace --missing FILE.jsonl --cluster 1x1xH200 -m validation.probes.volume_operators [SEED]

First and last layers of volumes, causal layers whose frames are padded by `cat`, resized volumes, group norms, RMS norms
without weights, and convolutions with a group for each sample or network. `program_operators.py` draws other kinds.
"""

from __future__ import annotations

import random
import sys

import torch
import torch.nn.functional as F
from torch import nn

from validation.probes.program_operators import BF16, FP16, FP32, MOST, Make, TooLarge, backward, make_all, randn

HALF = (BF16, BF16, FP16)
MOST_WORK = 2e11  # multiply-adds


def convolution(r: random.Random, channels: int, out: int, taps: tuple[int, int, int], stride: int) -> None:
    """Forward and backward of a layer of a volume."""
    depth, size, batch = r.choice((3, 5, 9, 17, 32)), r.choice((12, 24, 48, 64, 96, 128, 192)), r.choice((1, 1, 2, 4))
    pixels = batch * depth * size * size
    if pixels * channels * out * taps[0] * taps[1] * taps[2] > MOST_WORK * stride**3 or pixels * max(channels, out) > MOST:
        raise TooLarge
    dtype = r.choice((*HALF, FP32))
    module = nn.Conv3d(channels, out, taps, stride, (0, taps[1] // 2, taps[2] // 2), bias=False).to("cuda", dtype)
    x = randn(batch, channels, depth + taps[0] - 1, size, size, dtype=dtype)
    if r.random() < 0.2:
        x, module = x.contiguous(memory_format=torch.channels_last_3d), module.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
    backward(module(x.requires_grad_(channels > 4)))


def ends(r: random.Random) -> None:
    """First and last layers: few channels or few filters."""
    few, many = r.choice((1, 2, 3, 3, 4, 6, 8, 16)), r.choice((16, 32, 64, 96, 128, 192, 256))
    channels, out = (many, few) if r.random() < 0.75 else (few, many)
    convolution(r, channels, out, r.choice(((3, 3, 3), (3, 3, 3), (1, 3, 3), (1, 1, 1), (3, 1, 1))), r.choice((1, 1, 1, 2)))


def layers(r: random.Random) -> None:
    """Inner layers."""
    channels, out = r.choice((32, 64, 96, 128, 256)), r.choice((32, 64, 96, 128, 256))
    convolution(r, channels, out, r.choice(((3, 3, 3), (3, 3, 3), (1, 3, 3), (1, 1, 1), (3, 1, 1))), r.choice((1, 1, 1, 2)))


def stacked(r: random.Random) -> None:
    """A group for each sample (batch 1) or network, as vmap makes of convolutions."""
    groups, batch = r.choice(((16, 1), (64, 1), (128, 1), (256, 1), (512, 1), (8, 32), (16, 64), (4, 128)))
    channels, out = r.choice((1, 3, 16, 32, 64, 128)), r.choice((8, 16, 32, 64, 128))
    size, taps, stride = r.choice((4, 8, 14, 16, 28, 32)), r.choice((1, 3, 3, 3, 5)), r.choice((1, 1, 2))
    if batch * groups * max(channels, out) * size * size > MOST or groups * channels * out * taps * taps > MOST:
        raise TooLarge
    dtype = r.choice((FP32, FP32, BF16))
    weight = randn(groups * out, channels, taps, taps, dtype=dtype, grad=True)
    x = randn(batch, groups * channels, size, size, dtype=dtype, grad=channels > 3)
    backward(F.conv2d(x, weight, None, stride, taps // 2, groups=groups))


def group_norms(r: random.Random) -> None:
    """Group norms of images and volumes."""
    channels, batch, dtype = r.choice((32, 64, 96, 128, 256, 320, 512, 640)), r.choice((1, 1, 2, 4, 8, 16)), r.choice((*HALF, FP32))
    size = r.choice((8, 16, 32, 48, 64, 96, 128, 192))
    shape = (batch, channels, r.choice((3, 5, 9, 16)), size, size) if r.random() < 0.6 else (batch, channels, size, size)
    norm = nn.GroupNorm(r.choice((32, 32, 8, 1)), channels).to("cuda", dtype)
    x = randn(*shape, dtype=dtype)
    if len(shape) == 4 and r.random() < 0.4:
        x = x.contiguous(memory_format=torch.channels_last)
    backward(norm(x.requires_grad_()))


def rms_norms(r: random.Random) -> None:
    """RMS norms, most without weights."""
    width, rows = r.choice((64, 96, 128, 256, 512, 768, 1024, 2048, 4096, 8192)), 1 << r.randint(3, 18)
    dtype = r.choice((*HALF, FP32))
    weight = torch.ones(width, device="cuda", dtype=dtype, requires_grad=True) if r.random() < 0.3 else None
    backward(F.rms_norm(randn(rows, width, dtype=dtype, grad=True), (width,), weight))


def resizes(r: random.Random) -> None:
    """Volumes made larger or smaller."""
    depth, size = r.choice((2, 4, 5, 9, 16)), r.choice((8, 16, 24, 48, 64, 96))
    x = randn(r.choice((1, 1, 2, 4)), r.choice((1, 16, 32, 64, 128, 256)), depth, size, size, dtype=r.choice((*HALF, FP32)), grad=True)
    scale = r.choice((2.0, 2.0, (1.0, 2.0, 2.0), 0.5))
    if x.numel() > MOST // 8:
        raise TooLarge
    mode = r.choice(("nearest", "nearest", "trilinear"))
    backward(F.interpolate(x, scale_factor=scale, mode=mode, align_corners=False if mode == "trilinear" else None))


def frames(r: random.Random) -> None:
    """Tensors joined along an inner dimension, some of them slices."""
    size, dtype = r.choice((12, 24, 48, 96, 192)), r.choice((*HALF, FP32))
    x = randn(r.choice((1, 2, 4)), r.choice((3, 16, 64, 128, 256)), r.choice((3, 5, 9, 17)), size, size, dtype=dtype)
    if r.random() < 0.7:
        torch.cat([x[:, :, :1]] * r.choice((1, 2, 2, 4)) + [x], 2)
    else:
        torch.cat([x[:, :1], x], 1) if r.random() < 0.5 else torch.cat([x[..., : size // 4], x], -1)


COUNTS: dict[Make, int] = {ends: 60, layers: 40, stacked: 70, group_norms: 70, rms_norms: 40, resizes: 30, frames: 40}


if __name__ == "__main__":
    make_all(COUNTS, int(sys.argv[1]) if len(sys.argv) > 1 else 0)

"""Convolutions of random sizes and kinds, to measure and to judge predictions by. `phantora trace --missing` lists them.

    phantora trace --missing FILE.jsonl --cluster 1x1xH100 -m validation.probes.convolutions_random [SEED]
    phantora trace --missing FILE.jsonl --cluster 1x1xH100 -m validation.probes.convolutions_random groups [COUNT] [SEED]

`operators_wide.py` draws a few convolutions among much else. Here every kind that cuDNN has kernels of its own for comes
up often enough to be judged alone: groups (over sequences, images and volumes), one channel a group, transposed ones,
dilated ones, few channels in or out, widths that no power of two divides, plain products.

`groups`: convolutions in groups alone, in sizes of image models. RegNets, ResNeXts and their kin have groups of every width;
cuDNN has kernels of its own for some widths and layouts.
"""

from __future__ import annotations

import random
import sys
from math import prod
from typing import Any

import torch
from torch import nn

DTYPES = (torch.bfloat16, torch.bfloat16, torch.float16, torch.float32)
EVEN = (16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 232, 256, 320, 384, 448, 512, 640, 696, 768, 1024, 1392)
ODD = (3, 5, 12, 18, 30, 45, 50, 75, 90, 100, 144, 150, 230, 300, 460)
SIZES = ((64, 200, 500, 1000, 2048, 5000, 8000, 16000), (7, 10, 14, 20, 28, 33, 40, 56, 64, 80, 112, 160, 224), (4, 7, 8, 14, 16, 28, 32, 56))
BATCHES = (1, 2, 4, 8, 16, 24, 32, 64, 128)
MODULES = ((nn.Conv1d, nn.Conv2d, nn.Conv3d), (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d))
MOST_ELEMENTS = 1 << 25  # of an image
MOST_WORK = 5e11  # multiply-adds of the output

GROUP_WIDTHS = (
    4, 8, 12, 16, 16, 20, 24, 24, 28, 32, 32, 40, 48, 48, 56, 56, 64, 64, 72, 80, 88, 96, 104, 112, 112, 116, 120, 128, 128, 144,
    152, 160, 168, 176, 184, 192, 200, 208, 224, 232, 240, 248, 256, 264, 288, 328,
)
GROUPS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 24, 28, 32, 42, 64)
GROUP_SIZES = (7, 7, 8, 10, 12, 14, 14, 16, 19, 20, 24, 28, 28, 32, 40, 48, 56, 56, 64, 96, 112)
GROUP_BATCHES = (8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 384, 512)
GROUP_DTYPES = (torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.float16, torch.float32)


def width(r: random.Random) -> int:
    """Channels: most often a multiple of 8."""
    return r.choice(EVEN if r.random() < 0.75 else ODD)


def both_passes(r: random.Random, dims: int, channels: int, out: int, kernel: int, transposed: bool = False, **given: Any) -> bool:
    """Forward and backward of one convolution of a random image; False if it would be too large."""
    shape = (r.choice(BATCHES), channels, *(r.choice(SIZES[dims - 1]) for _ in range(dims)))
    stride = given.get("stride", 1)
    pixels = prod(shape[2:]) * (stride**dims if transposed else 1) / (1 if transposed else stride**dims)
    work = shape[0] * pixels * channels * out * kernel**dims / given.get("groups", 1) / (stride**dims if transposed else 1)
    if prod(shape) > MOST_ELEMENTS or shape[0] * pixels * out > MOST_ELEMENTS or work > MOST_WORK:
        return False
    dtype, last = r.choice(DTYPES), r.random() < 0.5
    x = torch.randn(shape, device="cuda", dtype=dtype)
    module = MODULES[transposed][dims - 1](channels, out, kernel, bias=False, **given).to("cuda", dtype)
    if last and dims > 1:
        layout = torch.channels_last if dims == 2 else torch.channels_last_3d
        x, module = x.contiguous(memory_format=layout), module.to(memory_format=layout)  # type: ignore[call-overload]
    y = module(x.requires_grad_(r.random() < 0.9))
    y.backward(torch.ones_like(y))
    return True


def dense(r: random.Random) -> bool:
    """One group: most layers."""
    dims, kernel = r.choice((1, 2, 2, 3)), r.choice((1, 2, 3, 3, 3, 4, 5, 7))
    stride = r.choice((1, 1, 2, kernel))
    return both_passes(r, dims, width(r), width(r), kernel, stride=stride, padding=kernel // 2 if stride < 3 else 0)


def plain(r: random.Random) -> bool:
    """One tap: products, with a stride or without."""
    return both_passes(r, r.choice((1, 2, 2, 3)), width(r), width(r), 1, stride=r.choice((1, 1, 1, 2)))


def dilated(r: random.Random) -> bool:
    """Taps apart from each other."""
    dilation = r.choice((2, 4, 8, 12))
    return both_passes(r, r.choice((1, 1, 2, 2, 3)), width(r), width(r), 3, padding=dilation, dilation=dilation)


def ends(r: random.Random) -> bool:
    """Few channels in, or out: the first and the last layer of networks."""
    few, many, kernel = r.choice((1, 2, 3, 4, 6)), width(r), r.choice((3, 4, 7, 16))
    channels, out = (few, many) if r.random() < 0.7 else (many, few)
    return both_passes(r, r.choice((1, 2, 2, 3)), channels, out, kernel, stride=r.choice((1, 2, 4)), padding=kernel // 2)


def grouped(r: random.Random) -> bool:
    """Groups of a few channels or of many."""
    groups, kernel = r.choice((2, 3, 4, 6, 8, 16, 32)), r.choice((1, 3, 3, 3, 5))
    channels = groups * r.choice((3, 4, 8, 12, 16, 24, 30, 32, 48, 56, 64, 96, 128, 232))
    out = channels if r.random() < 0.6 else groups * r.choice((2, 4, 8, 15, 16, 32, 40, 64, 100))
    if max(channels, out) > 2048:
        return False
    return both_passes(r, r.choice((1, 2, 2, 3, 3)), channels, out, kernel, stride=r.choice((1, 1, 2)), padding=kernel // 2, groups=groups)


def depthwise(r: random.Random) -> bool:
    """A channel a group."""
    channels, kernel = width(r), r.choice((3, 3, 5, 7, 31))
    dims = r.choice((1, 2, 2, 3)) if kernel < 31 else 1
    out = channels * r.choice((1, 1, 1, 2))
    return both_passes(r, dims, channels, out, kernel, stride=r.choice((1, 1, 2)), padding=kernel // 2, groups=channels)


def transposed(r: random.Random) -> bool:
    """Larger outputs than inputs."""
    kernel, stride, padding = r.choice(((2, 2, 0), (4, 2, 1), (3, 2, 1), (3, 1, 1), (5, 2, 2), (16, 8, 4), (4, 1, 0)))
    dims = r.choice((1, 2, 2, 3, 3))
    groups = r.choice((1, 1, 1, 1, 4))
    channels, out = (n - n % groups for n in (width(r), width(r)))
    if kernel**dims > 300 or not channels or not out:
        return False
    return both_passes(r, dims, channels, out, kernel, True, stride=stride, padding=padding, groups=groups)


def image_groups(r: random.Random) -> bool:
    """Forward and backward of a convolution in groups, of a batch of images; False if it would be too large."""
    width, groups, size, batch = (r.choice(of) for of in (GROUP_WIDTHS, GROUPS, GROUP_SIZES, GROUP_BATCHES))
    channels, kernel, stride = width * groups, r.choice((3, 3, 3, 3, 3, 1, 5)), r.choice((1, 1, 1, 2))
    work = batch * (size / stride) ** 2 * channels * width * kernel**2
    if channels > 4096 or batch * size * size * channels > 1 << 28 or not 2e8 < work < 4e11:
        return False
    dtype = r.choice(GROUP_DTYPES)
    x = torch.randn(batch, channels, size, size, device="cuda", dtype=dtype)
    module = nn.Conv2d(channels, channels, kernel, stride, kernel // 2, groups=groups, bias=False).to("cuda", dtype)
    if r.random() < 0.7:
        x, module = x.contiguous(memory_format=torch.channels_last), module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    y = module(x.requires_grad_())
    y.backward(torch.ones_like(y))
    return True


def main() -> None:
    torch.backends.cudnn.allow_tf32 = True
    if sys.argv[1:2] == ["groups"]:
        count, seed = (int(word) for word in (*sys.argv[2:], *("600", "0")[len(sys.argv) - 2 :]))
        r = random.Random(seed)
        made = 0
        while made < count:
            made += image_groups(r)
        torch.cuda.synchronize()
        return
    r = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    counts = {dense: 110, plain: 45, dilated: 50, ends: 45, grouped: 110, depthwise: 50, transposed: 90}
    for make, count in counts.items():
        made = 0
        while made < count:
            try:
                made += make(r)
            except RuntimeError as error:
                print(f"{make.__name__}: {str(error)[:150]}", flush=True)
            torch.cuda.synchronize()
        print(make.__name__, made, flush=True)


if __name__ == "__main__":
    main()

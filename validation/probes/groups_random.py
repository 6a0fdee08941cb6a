"""Convolutions in groups, in sizes of image models drawn at random. `phantora trace --missing` lists them.

    phantora trace --missing FILE.jsonl --cluster 1x1xH100 -m validation.probes.groups_random [COUNT] [SEED]

RegNets, ResNeXts and their kin have groups of every width; cuDNN has kernels of its own for some widths and layouts.
`convolutions_random.py` draws other kinds too, in small images.
"""

from __future__ import annotations

import random
import sys

import torch
from torch import nn

WIDTHS = (
    4, 8, 12, 16, 16, 20, 24, 24, 28, 32, 32, 40, 48, 48, 56, 56, 64, 64, 72, 80, 88, 96, 104, 112, 112, 116, 120, 128, 128, 144,
    152, 160, 168, 176, 184, 192, 200, 208, 224, 232, 240, 248, 256, 264, 288, 328,
)  # fmt: skip
GROUPS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 24, 28, 32, 42, 64)
SIZES = (7, 7, 8, 10, 12, 14, 14, 16, 19, 20, 24, 28, 28, 32, 40, 48, 56, 56, 64, 96, 112)
BATCHES = (8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 384, 512)
MOST_CHANNELS, MOST_ELEMENTS, MOST_WORK = 4096, 1 << 28, 4e11


def convolution(r: random.Random) -> bool:
    """Forward and backward of one; False if it would be too large."""
    width, groups, size, batch = (r.choice(of) for of in (WIDTHS, GROUPS, SIZES, BATCHES))
    channels, kernel, stride = width * groups, r.choice((3, 3, 3, 3, 3, 1, 5)), r.choice((1, 1, 1, 2))
    work = batch * (size / stride) ** 2 * channels * width * kernel**2
    if channels > MOST_CHANNELS or batch * size * size * channels > MOST_ELEMENTS or not 2e8 < work < MOST_WORK:
        return False
    dtype = r.choice((torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.float16, torch.float32))
    x = torch.randn(batch, channels, size, size, device="cuda", dtype=dtype)
    module = nn.Conv2d(channels, channels, kernel, stride, kernel // 2, groups=groups, bias=False).to("cuda", dtype)
    if r.random() < 0.7:
        x, module = x.contiguous(memory_format=torch.channels_last), module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    y = module(x.requires_grad_())
    y.backward(torch.ones_like(y))
    return True


def main() -> None:
    torch.backends.cudnn.allow_tf32 = True
    count, seed = (int(word) for word in (*sys.argv[1:], *("600", "0")[len(sys.argv) - 1 :]))
    r = random.Random(seed)
    made = 0
    while made < count:
        made += convolution(r)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()

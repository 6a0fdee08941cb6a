"""Attention around whole waves, and operators of vision networks, with sizes drawn at random. `phantora trace --missing` lists them.

    phantora trace --missing FILE.jsonl --cluster 1x1xH200 -m validation.probes.shape_operators waves|layers|passes [SEED]

`waves`: attention whose blocks fill the SMs almost, just or a little more than a whole number of times, and short or odd
lengths. `layers`: convolutions that other probes leave out (dilated, with long or unequal windows, large ones in float32)
and layers as in U-Nets. `passes`: windows of images, correlation of features, samples around points, networks of sines,
norms, small products, passes with broadcasts. `precise_operators.py` and `index_operators.py` draw other kinds.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from validation.probes.program_operators import BF16, FP16, FP32, MOST, Make, TooLarge, backward, make_all, near, randn

SMS = 132
BLOCK = 128  # rows of a block of attention
MOST_WORK = 4e11  # multiply-adds
BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)


def attend(r: random.Random, batch: int, heads: int, queries: int, keys: int, head: int, causal: bool) -> None:
    """Forward, and most often backward, through FlashAttention and cuDNN."""
    if batch * heads * max(queries, keys) * head > MOST or batch * heads * queries * keys * head > 2e11:
        raise TooLarge
    dtype = r.choice((BF16, BF16, FP16))
    q = randn(batch, heads, queries, head, dtype=dtype, grad=True)
    k, v = (randn(batch, heads, keys, head, dtype=dtype, grad=True) for _ in range(2))
    train = r.random() < 0.6
    for backend in BACKENDS:
        if head > 128 and backend == SDPBackend.CUDNN_ATTENTION:
            continue
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            if train:
                backward(out)


def around_waves(r: random.Random) -> None:
    """Blocks that fill the SMs once or twice each close to a whole number of times."""
    wanted = max(8, round(SMS * r.choice((0.25, 0.5, 1, 1, 1.5, 2, 2, 3, 4, 4, 5, 6, 8, 10)) * r.uniform(0.85, 1.15)))
    blocks = r.choice((1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 20, 32, 36))
    pairs = max(1, wanted // blocks)
    heads = r.choice([h for h in (1, 2, 3, 4, 6, 8, 12, 16, 24) if pairs % h == 0])
    length = blocks * BLOCK - (0 if r.random() < 0.4 else r.randrange(BLOCK))
    keys = length if r.random() < 0.8 else near(r, (64, 77, 128, 256, 1024))
    head = r.choice((32, 40, 64, 64, 64, 80, 96, 128, 128, 128, 192, 256))
    attend(r, pairs // heads, heads, length, keys, head, keys == length and r.random() < 0.4)


def short(r: random.Random) -> None:
    """Windows, patches and sentences."""
    length = r.choice(
        (r.randrange(2, 64), r.randrange(17, 300), r.randrange(64, 640), 49, 64, 77, 144, 196, 197, 256, 257, 576, 577)
    )
    attend(r, r.choice((1, 2, 4, 8, 16, 32, 64, 128, 256)), r.choice((1, 2, 3, 4, 6, 8, 12, 16)), length, length, r.choice((32, 64, 64, 80, 96, 128)), r.random() < 0.3)  # fmt: skip


def many(r: random.Random) -> None:
    """Long sequences with few heads, and short ones with many."""
    length = near(r, (512, 1024, 2048, 2048, 4096, 8192))
    attend(r, r.choice((1, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)), r.choice((1, 4, 8, 12, 16, 24, 32)), length, length, r.choice((64, 64, 128, 128, 256)), r.random() < 0.5)  # fmt: skip


def both_ways(r: random.Random, layer: nn.Module, x: torch.Tensor) -> None:
    """In float32 without TF32 and with it, or in 16 bits."""
    kind = r.choice(("both", "both", "tf32", "half"))
    if kind == "half":
        dtype = r.choice((FP16, BF16))
        layer, x = layer.to(dtype), x.to(dtype)
    x = x.detach().requires_grad_(x.shape[1] > 3)
    for allowed in {"both": (False, True)}.get(kind, (True,)):
        torch.backends.cudnn.allow_tf32 = allowed
        out = layer(x)
        if r.random() < 0.75:
            backward(out)
    torch.backends.cudnn.allow_tf32 = True


def sequences(r: random.Random) -> None:
    """Dilated convolutions of sequences, padded at their begin as in temporal networks."""
    channels, out = (
        r.choice((1, 2, 10, 25, 30, 64, 100, 128, 256, 600)),
        r.choice((25, 30, 64, 100, 128, 256, 450, 600)),
    )
    taps, dilation = r.choice((2, 3, 5, 6, 7, 8)), 2 ** r.randrange(9)
    length, batch = near(r, (50, 100, 200, 400, 784, 1000, 4000, 16000)), r.choice((1, 8, 16, 32, 64, 128))
    if batch * length * channels * out * taps > MOST_WORK / 4 or batch * length * max(channels, out) > MOST:
        raise TooLarge
    layer = nn.Conv1d(channels, out, taps, padding=(taps - 1) * dilation, dilation=dilation, bias=r.random() < 0.5)
    both_ways(r, layer.cuda(), randn(batch, channels, length))


def windows(r: random.Random) -> None:
    """Long, unequal and dilated windows over images, as in optical flow, segmentation and detection; transposed too."""
    channels, out = (r.choice((2, 3, 3, 16, 32, 64, 64, 96, 128, 128, 192, 256, 384)) for _ in range(2))
    taps = r.choice(
        ((1, 5), (5, 1), (1, 7), (7, 1), (3, 7), (3, 5), (7, 7), (7, 7), (5, 5), (9, 9), (11, 11), (3, 3), (4, 4))
    )
    stride, transposed = r.choice((1, 1, 1, 2)), r.random() < 0.35
    dilation = r.choice((1, 2, 4, 6, 12)) if taps == (3, 3) else 1
    height, width, batch = (
        near(r, (16, 32, 46, 64, 96, 128)),
        near(r, (16, 32, 62, 64, 128, 256)),
        r.choice((1, 2, 4, 8, 16, 32)),
    )
    area = height * width * (stride**2 if transposed else 1)
    if batch * height * width * channels * out * taps[0] * taps[1] / (1 if transposed else stride**2) > MOST_WORK:
        raise TooLarge
    if batch * max(channels * height * width, out * area) > MOST:
        raise TooLarge
    padding = tuple(dilation * (t - 1) // 2 if r.random() < 0.8 else 0 for t in taps)
    module = nn.ConvTranspose2d if transposed else nn.Conv2d
    layer = module(channels, out, taps, stride, padding, dilation=dilation, bias=r.random() < 0.5).cuda()  # type: ignore[arg-type]
    x = randn(batch, channels, height, width)
    if r.random() < 0.2:
        x, layer = x.contiguous(memory_format=torch.channels_last), layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    both_ways(r, layer, x)


def blocks(r: random.Random) -> None:
    """A block of a U-Net: group norm, activation, convolution; up and down."""
    channels = r.choice((64, 128, 128, 192, 256, 256, 320, 384, 512))
    out = channels if r.random() < 0.6 else 2 * channels
    size, batch = r.choice((4, 8, 8, 16, 16, 24, 32, 32, 64)), r.choice((1, 2, 4, 8, 16, 32, 64, 128))
    if batch * size * size * channels * out * 9 > MOST_WORK / 2 or batch * size * size * out > MOST:
        raise TooLarge
    norm = nn.GroupNorm(r.choice((8, 16, 32)), channels).cuda()
    kind = r.choice(("same", "same", "same", "down", "up", "point"))
    layer = nn.Conv2d(
        channels, out, 1 if kind == "point" else 3, 2 if kind == "down" else 1, 0 if kind == "point" else 1
    ).cuda()
    x = F.silu(norm(randn(batch, channels, size, size, grad=True)))
    x = (
        F.interpolate(x, scale_factor=2, mode=r.choice(("nearest", "bilinear")))
        if kind == "up" and batch * size * size * 4 * out < MOST
        else x
    )
    backward(x)
    both_ways(r, layer, x.detach())


def image_windows(r: random.Random) -> None:
    """Attention within windows of an image, written out: shifts, partitions, products, biases, softmax."""
    batch, side, window = r.choice((1, 2, 4, 8, 16, 32, 64, 128)), r.choice((7, 14, 28, 56)), 7
    heads, width = r.choice((3, 4, 6, 8, 12, 16, 24)), 32
    if batch * side * side * heads * width > MOST // 4:
        raise TooLarge
    dtype, n = r.choice((FP16, BF16, FP32)), window * window
    x = randn(batch, side, side, heads * width, dtype=dtype, grad=True)
    parts = x.roll((-3, -3), (1, 2)).view(batch, side // window, window, side // window, window, -1)
    parts = parts.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, n, heads * width)
    q = k = v = parts.reshape(-1, n, heads, width).permute(0, 2, 1, 3)
    table = randn((2 * window - 1) ** 2, heads, dtype=FP32, grad=True)
    index = torch.randint(0, (2 * window - 1) ** 2, (n * n,), device="cuda")
    bias = table[index].view(n, n, heads).permute(2, 0, 1).contiguous()
    scores = (q * 0.1) @ k.transpose(-2, -1) + bias.unsqueeze(0).to(dtype)
    out = (F.dropout(scores.softmax(-1), 0.1) @ v).transpose(1, 2).reshape(-1, n, heads * width)
    backward(F.gelu(F.layer_norm(out, (heads * width,))).mean((1,)))


def correlation(r: random.Random) -> None:
    """Products of all pairs of pixels, their pyramid, samples around points, and gated units of images."""
    batch, width = r.choice((1, 2, 4, 8)), r.choice((64, 128, 256))
    h, w = r.choice((24, 32, 46, 55)), r.choice((32, 62, 64, 128))
    if batch * (h * w) ** 2 > MOST:
        raise TooLarge
    dtype = r.choice((FP32, FP16))
    a, b = (randn(batch, width, h * w, dtype=dtype, grad=True) for _ in range(2))
    pairs = (a.transpose(1, 2) @ b).float() / width**0.5
    level = pairs.view(batch * h * w, 1, h, w)
    if r.random() < 0.5:
        level = F.avg_pool2d(level, 2, stride=2)
    side = r.choice((5, 7, 9))
    grid = torch.rand(batch * h * w, side, side, 2, device="cuda") * 2 - 1
    sampled = F.grid_sample(level, grid, align_corners=True, padding_mode=r.choice(("zeros", "border")))
    backward(sampled.view(batch, h, w, -1).permute(0, 3, 1, 2).contiguous())
    hidden = randn(batch, width, h, w, grad=True)
    z, q = torch.sigmoid(hidden), torch.tanh(hidden)
    backward((1 - z) * hidden + z * q)
    mask = torch.softmax(randn(batch, 1, 9, 8, 8, h // 2, w // 2, grad=True), 2)
    flow = F.unfold(8 * randn(batch, 2, h // 2, w // 2, grad=True), (3, 3), padding=1)
    backward((mask * flow.view(batch, 2, 9, 1, 1, h // 2, w // 2)).sum(2).permute(0, 1, 4, 2, 5, 3))


def sines(r: random.Random) -> None:
    """A network of sines or of ReLUs over points, its gradient by the input, and the gradient of that."""
    points, width = near(r, (1024, 4096, 16384, 65536, 131072, 262144)), r.choice((64, 128, 256, 256, 512))
    if points * width > MOST // 2:
        raise TooLarge
    x = randn(points, r.choice((2, 3)), grad=True)
    first, second, last = (
        nn.Linear(x.shape[1], width).cuda(),
        nn.Linear(width, width).cuda(),
        nn.Linear(width, r.choice((1, 3))).cuda(),
    )
    act: Callable[[torch.Tensor], torch.Tensor] = r.choice((lambda t: torch.sin(30 * t), F.softplus, torch.tanh))
    y = last(act(second(act(first(x)))))
    gradient = torch.autograd.grad(y, (x,), torch.ones_like(y), create_graph=True)[0]
    backward(((gradient - 1) ** 2).sum(-1).mean())


def norms(r: random.Random) -> None:
    """Norms of features in each type, forward and backward; weights too."""
    dtype, which = r.choice((FP32, FP32, BF16, FP16)), r.randrange(4)
    batch, channels, size = (
        r.choice((1, 2, 4, 8, 16, 32, 64, 128, 256)),
        near(r, (16, 32, 64, 96, 128, 256, 512, 1024)),
        r.choice((1, 4, 7, 8, 14, 16, 28, 32, 56, 64, 112)),
    )
    if batch * channels * size * size > MOST // 2:
        raise TooLarge
    if which == 0:
        width = near(r, (16, 33, 64, 96, 128, 192, 384, 768, 1024, 3072))
        rows = near(r, (16, 128, 1024, 8192, 50176))
        backward(nn.LayerNorm(width).to("cuda", dtype)(randn(rows, width, dtype=dtype, grad=True)))
    elif which == 1:
        groups = r.choice([g for g in (1, 4, 8, 16, 32, channels) if channels % g == 0])
        backward(
            nn.GroupNorm(groups, channels).to("cuda", dtype)(randn(batch, channels, size, size, dtype=dtype, grad=True))
        )
    elif which == 2:
        x = randn(batch, channels, size, size, dtype=dtype, grad=False)
        x = x.contiguous(memory_format=torch.channels_last) if r.random() < 0.4 else x
        layer = nn.BatchNorm2d(channels).cuda().train(r.random() < 0.8)
        backward(layer(x.requires_grad_()) if batch * size * size > 1 else layer.eval()(x.requires_grad_()))
    else:
        layer1 = nn.utils.parametrizations.weight_norm(
            nn.Conv1d(channels, max(1, channels // 2), r.choice((1, 3, 7)))
        ).cuda()
        backward(layer1.weight)


def products(r: random.Random) -> None:
    """Small products, with a bias, in batches, over shapes with no even size."""
    m, n, k = (near(r, (1, 2, 8, 16, 32, 49, 64, 100, 128, 197, 256, 384, 512, 1024)) for _ in range(3))
    batch, dtype = near(r, (1, 4, 12, 64, 192, 768, 4096)), r.choice((FP32, FP32, BF16, FP16))
    which = r.randrange(4)
    torch.backends.cuda.matmul.allow_tf32 = r.random() < 0.3
    if which < 2:
        rows = m * r.choice((1, 4, 32, 128))
        backward(
            F.linear(
                randn(rows, k, dtype=dtype, grad=True),
                randn(n, k, dtype=dtype, grad=True),
                randn(n, dtype=dtype, grad=True),
            )
        )
    else:
        if batch * max(m * k, k * n, m * n) > MOST // 2 or batch * m * n * k > 1e11:
            raise TooLarge
        a = randn(batch, m, k, dtype=dtype, grad=True)
        b = randn(batch, n, k, dtype=dtype, grad=True).mT if which == 2 else randn(batch, k, n, dtype=dtype, grad=True)
        backward(a @ b)
    torch.backends.cuda.matmul.allow_tf32 = False


def broadcasts(r: random.Random) -> None:
    """Passes over images and sequences with broadcasts, strides and odd sizes; sums over any dimensions."""
    shape = [
        near(r, (1, 2, 4, 8, 16, 32, 64, 128)),
        near(r, (1, 3, 16, 64, 100, 256)),
        near(r, (7, 14, 28, 56, 100, 128)),
        near(r, (7, 14, 32, 49, 100, 128)),
    ]
    dtype = r.choice((FP32, FP32, BF16, FP16))
    x = randn(*shape, dtype=dtype, grad=True)
    small = [s if r.random() < 0.5 else 1 for s in shape]
    y = randn(*small, dtype=dtype, grad=True)
    dims = tuple(d for d in range(4) if r.random() < 0.5) or (r.randrange(4),)
    calls: tuple[Callable[[], torch.Tensor], ...] = (
        lambda: x * y, lambda: x + y, lambda: (x - y) ** 2, lambda: torch.where(x > y, x, y), lambda: x / (y.abs() + 1), lambda: x.mean(dims), lambda: x.sum(dims), lambda: x.amax(dims),
        lambda: x.permute(0, 2, 3, 1).contiguous(), lambda: x.permute(0, 2, 1, 3).reshape(shape[0], shape[2], -1).contiguous(), lambda: x.transpose(0, 1) * 2, lambda: torch.cat([x, y.expand_as(x)], 1),
        lambda: x[..., ::2].contiguous(), lambda: F.pad(x, (1, 2, 1, 2)), lambda: F.pad(x, (1, 2, 1, 2), mode="reflect"), lambda: F.interpolate(x, scale_factor=2), lambda: F.leaky_relu(x, 0.2) + y,
        lambda: x.var(dims), lambda: x.float().softmax(1), lambda: torch.fft.rfft2(x.float()).abs(), lambda: F.avg_pool2d(x, 2), lambda: x.cumsum(r.randrange(4)),
    )  # fmt: skip
    backward(r.choice(calls)())


COUNTS: dict[str, dict[Make, int]] = {
    "waves": {around_waves: 260, short: 100, many: 60},
    "layers": {sequences: 90, windows: 170, blocks: 110},
    "passes": {image_windows: 14, correlation: 14, sines: 20, norms: 120, products: 130, broadcasts: 220},
}


if __name__ == "__main__":
    make_all(COUNTS[sys.argv[1]], int(sys.argv[2]) if len(sys.argv) > 2 else 0)

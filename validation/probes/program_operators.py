"""Operators of programs that few tables have, with sizes drawn at random. `phantora trace --missing` lists them.

    phantora trace --missing FILE.jsonl --cluster 1x1xH100 -m validation.probes.program_operators [SEED]

Convolutions of double backward passes, per-sample gradients, images of three dimensions in 16 bits, recurrent layers,
losses over large vocabularies, gathers and scatters, sorts and scans, resizing, transforms, norms, pools, products in
other formats. `operators_wide.py` draws the operators of common models.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import nn

T = TypeVar("T")
BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
MOST = 1 << 26  # elements of an operand
Make = Callable[[random.Random], None]


class TooLarge(Exception):
    """The operands drawn exceed `MOST`."""


def randn(*shape: int, dtype: torch.dtype = FP32, grad: bool = False) -> torch.Tensor:
    """Raises TooLarge."""
    if torch.Size(shape).numel() > MOST:
        raise TooLarge
    return torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_(grad)


def indices(bound: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, bound, shape, device="cuda")


def backward(out: torch.Tensor) -> None:
    out.backward(torch.ones_like(out))


def near(r: random.Random, values: Sequence[int]) -> int:
    """One of `values`, or up to a quarter off it."""
    value = r.choice(values)
    return value if r.random() < 0.5 else max(1, round(value * r.uniform(0.8, 1.25)))


def double_backward(r: random.Random) -> None:
    """A Hessian-vector product of a small convolutional network."""
    size, width, batch = (
        r.choice((8, 14, 16, 28, 32, 32)),
        r.choice((8, 16, 24, 32, 48, 64, 96)),
        r.choice((8, 16, 32, 64, 100, 128)),
    )
    channels, taps, stride = r.choice((1, 3, 16, 32)), r.choice((3, 3, 5)), r.choice((1, 1, 2))
    net = nn.Sequential(
        nn.Conv2d(channels, width, taps, padding=taps // 2), nn.Tanh(),
        nn.Conv2d(width, 2 * width, 3, stride, 1), nn.Tanh(), nn.Flatten(), nn.LazyLinear(10),
    ).cuda()
    loss = F.cross_entropy(net(randn(batch, channels, size, size)), indices(10, batch))
    weights = list(net.parameters())
    grads = torch.autograd.grad(loss, weights, create_graph=True)
    torch.autograd.grad(grads, weights, [torch.ones_like(g) for g in grads])


def per_sample(r: random.Random) -> None:
    """Gradients of each sample, by torch.func: convolutions with a group for each."""
    size, width, batch = r.choice((14, 16, 28, 32)), r.choice((8, 16, 20, 32, 64)), r.choice((8, 16, 32, 64, 128))
    channels, taps = r.choice((1, 3)), r.choice((3, 3, 5))
    net = nn.Sequential(
        nn.Conv2d(channels, width, taps, padding=taps // 2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, r.choice((1, 2)), 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(2 * width, 10),
    ).cuda()
    weights: dict[str, torch.Tensor] = dict(net.named_parameters())

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(torch.func.functional_call(net, parameters, (x[None],)), y[None])

    torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(
        weights, randn(batch, channels, size, size), indices(10, batch)
    )


def volumes(r: random.Random) -> None:
    """Layers of 3-d U-Nets and of video networks, in 16 bits most often."""
    dtype = r.choice((BF16, FP16, FP16, FP32))
    channels, out = r.choice((1, 3, 16, 32, 32, 64, 64, 128, 256)), r.choice((16, 32, 32, 64, 64, 128, 256, 320))
    depth, size, batch = (
        r.choice((4, 8, 8, 16, 32, 64)),
        r.choice((7, 14, 16, 28, 32, 56, 64, 96)),
        r.choice((1, 1, 2, 4, 8)),
    )
    taps, stride = (
        r.choice(((3, 3, 3), (3, 3, 3), (3, 3, 3), (1, 3, 3), (3, 1, 1), (1, 1, 1), (2, 2, 2))),
        r.choice((1, 1, 2)),
    )
    transposed = taps == (2, 2, 2)
    if channels * out * depth * size * size * batch * taps[0] * taps[1] * taps[2] > 4e11:
        raise TooLarge
    if transposed:
        module: nn.Module = nn.ConvTranspose3d(channels, out, 2, 2, bias=False)
    else:
        module = nn.Conv3d(channels, out, taps, stride, (taps[0] // 2, taps[1] // 2, taps[2] // 2), bias=False)
    x, module = randn(batch, channels, depth, size, size, dtype=dtype), module.to("cuda", dtype)
    if r.random() < 0.3:
        x, module = x.contiguous(memory_format=torch.channels_last_3d), module.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
    backward(module(x.requires_grad_(channels > 3)))


def recurrent(r: random.Random) -> None:
    kind, hidden = r.choice((nn.LSTM, nn.LSTM, nn.GRU)), near(r, (64, 128, 256, 512, 640, 1024))
    layers, both = r.choice((1, 1, 2, 3, 4)), r.random() < 0.35
    batch, steps = near(r, (1, 8, 16, 20, 32, 64, 128, 256)), near(r, (8, 16, 35, 50, 100, 200, 400))
    inputs = r.choice((hidden, hidden, 40, 80, 300))
    if batch * steps * hidden * (1 + both) > MOST // 4:
        raise TooLarge
    dtype = r.choice((FP32, FP32, FP16, BF16))
    layer = kind(
        inputs,
        hidden,
        layers,
        batch_first=r.random() < 0.5,
        bidirectional=both,
        dropout=r.choice((0.0, 0.2)) if layers > 1 else 0.0,
    )
    backward(layer.to("cuda", dtype)(randn(batch, steps, inputs, dtype=dtype, grad=r.random() < 0.8))[0])


def vocabularies(r: random.Random) -> None:
    """Losses over many classes."""
    classes = r.choice(
        (10, 1000, 5000, 21841, 30522, 32000, 49152, 50257, 50304, 65024, 100277, 128256, 151936, 256000)
    )
    rows = near(r, (16, 128, 512, 1024, 2048, 4096, 8192))
    x, y = randn(rows, classes, dtype=r.choice((BF16, FP16, FP32, FP32)), grad=True), indices(classes, rows)
    which = r.randrange(7)
    if which < 3:
        F.cross_entropy(
            x, y, label_smoothing=r.choice((0.0, 0.0, 0.1)), reduction=r.choice(("mean", "mean", "none", "sum"))
        ).sum().backward()
    elif which == 3:
        F.cross_entropy(x.float(), y).backward()
    elif which == 4:
        F.kl_div(F.log_softmax(x, -1), F.softmax(x.detach(), -1), reduction="batchmean").backward()
    elif which == 5:
        x.logsumexp(-1).sum().backward()
    else:
        F.log_softmax(x.float(), -1).gather(1, y[:, None]).sum().backward()


def tables(r: random.Random) -> None:
    """Rows looked up in a table and their gradients."""
    rows, width = (
        r.choice((1000, 10000, 30522, 50257, 128256, 500000)),
        r.choice((16, 32, 64, 100, 128, 256, 768, 1024, 4096)),
    )
    count = near(r, (64, 512, 2048, 8192, 32768, 131072))
    if rows * width > MOST or count * width > MOST:
        raise TooLarge
    weight = randn(rows, width, dtype=r.choice((FP32, FP32, BF16)), grad=True)
    which = r.randrange(6)
    if which < 3:
        backward(
            F.embedding(indices(rows, count), weight, padding_idx=r.choice((None, 0)), scale_grad_by_freq=which == 2)
        )
    elif which == 3:
        bags = max(1, count // r.choice((1, 4, 20)))
        offsets = torch.arange(bags, device="cuda") * (count // bags)
        backward(
            F.embedding_bag(
                indices(rows, count),
                weight.float().detach().requires_grad_(),
                offsets,
                mode=r.choice(("sum", "mean", "max")),
            )
        )
    else:
        backward(weight[indices(rows, count)])


def scatters(r: random.Random) -> None:
    """Messages of graphs, updates by index, gathers of regions."""
    nodes, width = near(r, (500, 3000, 20000, 100000, 170000)), r.choice((1, 16, 32, 64, 100, 128, 256, 512))
    edges = near(r, (2000, 20000, 100000, 500000, 1200000))
    if nodes * width > MOST or edges * width > MOST:
        raise TooLarge
    dtype = r.choice((FP32, FP32, BF16))
    x, message, index = randn(nodes, width, dtype=dtype), randn(edges, width, dtype=dtype), indices(nodes, edges)
    wide = index[:, None].expand(-1, width)
    few = index[: max(1, edges // 8)]
    calls: tuple[Callable[[], object], ...] = (
        lambda: x.scatter_reduce(0, wide, message, r.choice(("sum", "mean", "amax", "amin"))), lambda: x.scatter_add(0, wide, message),
        lambda: x.index_add(0, index, message), lambda: x.gather(0, wide), lambda: x.index_select(0, index), lambda: x[index],
        lambda: x.index_put_((few,), message[: len(few)], accumulate=True), lambda: x.index_put_((few,), message[: len(few)]),
        lambda: x.index_copy(0, few, message[: len(few)]), lambda: x.index_fill(0, few, 1.0), lambda: x.scatter(0, wide, message),
        lambda: backward(x.detach().requires_grad_().index_select(0, index)), lambda: x.take(few), lambda: x.index_reduce(0, few, message[: len(few)], "mean"),
        lambda: backward(x.detach().requires_grad_().gather(0, wide)), lambda: backward(torch.take_along_dim(x.detach().requires_grad_(), wide, 0)),
        lambda: torch.where(message > 0, message, 0), lambda: message.masked_fill(message > 0, 0), lambda: message.repeat_interleave(2, 0),
    )
    r.choice(calls)()


def orders(r: random.Random) -> None:
    """Sorts, selections, scans, counts."""
    rows, width = near(r, (1, 8, 64, 512, 4096, 32768)), near(r, (32, 128, 1000, 4096, 32000, 128256, 1000000))
    x = randn(rows, width, dtype=r.choice((FP32, FP32, BF16, FP16)))
    k, dim = min(width, r.choice((1, 2, 8, 50, 100, 1000))), r.choice((0, 1, 1, 1))
    counts, edges = indices(100, rows * width), torch.linspace(-3, 3, 64, device="cuda")
    calls: tuple[Callable[[], object], ...] = (
        lambda: x.sort(1), lambda: x.argsort(1, descending=True), lambda: x.sort(stable=True, dim=dim), lambda: x.topk(k, 1), lambda: x.topk(k, 1, sorted=False),
        lambda: x.cumsum(dim), lambda: x.cumprod(1), lambda: x.float().logcumsumexp(dim), lambda: x.cummax(1), lambda: x.kthvalue(k, 1), lambda: x.median(1),
        lambda: x.float().quantile(0.9, 1), lambda: x.argmax(dim), lambda: x.float().histc(64), lambda: torch.searchsorted(edges, x.float()),
        lambda: torch.bucketize(x.float(), edges), lambda: counts.bincount(minlength=100), lambda: x.softmax(1).float().multinomial(1), lambda: counts.sort(),
        lambda: x.max(dim), lambda: x.var(dim), lambda: x.float().std(1), lambda: x.all(), lambda: x.isnan().any(), lambda: x.prod(1), lambda: x.norm(dim=1),
        lambda: x.diff(dim=1), lambda: x.aminmax(dim=1), lambda: x.count_nonzero(1), lambda: torch.randperm(width, device="cuda"),
    )
    r.choice(calls)()


def resizing(r: random.Random) -> None:
    """Other extents, samples of images, patches."""
    batch, channels, size = (
        r.choice((1, 2, 4, 8, 16, 32)),
        r.choice((1, 3, 16, 32, 64, 128, 256)),
        near(r, (7, 14, 28, 32, 56, 64, 128, 224, 256)),
    )
    dtype, last = r.choice((FP32, FP32, BF16, FP16)), r.random() < 0.3
    if batch * channels * size * size > MOST // 8:
        raise TooLarge
    x = randn(batch, channels, size, size, dtype=dtype)
    x = (x.contiguous(memory_format=torch.channels_last) if last else x).requires_grad_()
    which, scale = r.randrange(10), r.choice((2, 2, 4, 0.5, 1.5))
    if which < 4:
        mode = ("nearest", "bilinear", "bicubic", "area")[which]
        align = r.random() < 0.3 if which in (1, 2) else None
        out = F.interpolate(
            x,
            scale_factor=scale,
            mode=mode,
            align_corners=align,
            antialias=which in (1, 2) and scale < 1 and r.random() < 0.5,
        )
    elif which == 4:
        grid = randn(batch, size, size, 2, dtype=dtype).clamp(-1, 1).requires_grad_(r.random() < 0.5)
        out = F.grid_sample(x, grid, mode=r.choice(("bilinear", "nearest")), align_corners=False)
    elif which == 5:
        taps = r.choice((2, 3, 3, 5, 7))
        if batch * channels * size * size * taps * taps > MOST:
            raise TooLarge
        out = F.unfold(x, taps, padding=taps // 2, stride=r.choice((1, 2, taps)))
    elif which == 6:
        out = (
            F.pixel_shuffle(x, 2)
            if channels % 4 == 0
            else F.pixel_unshuffle(x[..., : size // 2 * 2, : size // 2 * 2], 2)
        )
    elif which == 7:
        out = F.pad(x, (1, 2, 3, 0), mode=r.choice(("reflect", "replicate", "circular", "constant")))
    elif which == 8:
        y = randn(batch, channels, size, 4 * size, dtype=dtype, grad=True).flatten(2)
        out = F.interpolate(y, scale_factor=scale, mode=r.choice(("linear", "nearest")))
    else:
        depth = r.choice((4, 8, 16))
        if batch * channels * size * size * depth > MOST // 8:
            raise TooLarge
        z = randn(batch, channels, depth, size, size, dtype=dtype, grad=True)
        if r.random() < 0.6:
            out = F.interpolate(z, scale_factor=r.choice((2, 0.5)), mode=r.choice(("trilinear", "nearest")))
        else:
            out = F.grid_sample(z, randn(batch, depth, size, size, 3, dtype=dtype).clamp(-1, 1), align_corners=False)
    backward(out)


def norms(r: random.Random) -> None:
    """Norms over groups, instances, batches and rows; weight norm."""
    dims, channels, batch = (
        r.choice((1, 2, 2, 2, 3)),
        r.choice((16, 32, 48, 64, 96, 128, 256, 320, 512, 640, 1280)),
        r.choice((1, 2, 4, 8, 16, 32, 64)),
    )
    size = near(r, ((100, 500, 1000, 4000), (7, 14, 16, 28, 32, 56, 64, 112, 128), (4, 8, 16, 28, 32, 64))[dims - 1])
    dtype, last = r.choice((FP32, BF16, FP16)), r.random() < 0.3
    x = randn(batch, channels, *[size] * dims, dtype=dtype)
    if last and dims > 1:
        x = x.contiguous(memory_format=torch.channels_last if dims == 2 else torch.channels_last_3d)
    which = r.randrange(8)
    kind: nn.Module
    if which < 3:
        kind = nn.GroupNorm(r.choice([g for g in (1, 2, 4, 8, 16, 32) if channels % g == 0]), channels)
    elif which < 5:
        kind = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[dims - 1](channels, affine=r.random() < 0.5)
    elif which == 5:
        kind = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims - 1](channels)
        kind.train(r.random() < 0.7)
    else:
        rows, width = (
            near(r, (16, 200, 1000, 8192, 50000)),
            near(r, (32, 64, 128, 200, 256, 512, 768, 1280, 2048, 5120)),
        )
        x, kind = randn(rows, width, dtype=dtype), (nn.LayerNorm if which == 6 else nn.RMSNorm)(width)
    backward(kind.to("cuda", dtype)(x.requires_grad_()))


def pools(r: random.Random) -> None:
    dims, channels, batch = (
        r.choice((1, 2, 2, 3)),
        r.choice((3, 16, 32, 64, 128, 256, 512, 2048)),
        r.choice((1, 4, 8, 16, 32, 64, 128)),
    )
    size = near(r, ((100, 500, 1000, 4000, 16000), (7, 8, 14, 28, 32, 56, 64, 112), (4, 8, 16, 28, 32))[dims - 1])
    x = randn(batch, channels, *[size] * dims, dtype=r.choice((FP32, BF16, FP16)))
    if r.random() < 0.3 and dims > 1:
        x = x.contiguous(memory_format=torch.channels_last if dims == 2 else torch.channels_last_3d)
    x.requires_grad_()
    taps, stride = r.choice((2, 3, 3, 5)), r.choice((1, 2, 2))
    if dims == 3:
        taps = min(taps, size)  # torch refuses larger ones of volumes, with padding too
    which = r.randrange(4)
    if which == 0:
        out = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[dims - 1](
            x, r.choice((1, 1, 2, 4, 7))
        )
    elif which == 1:
        out = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[dims - 1](x, taps, stride, taps // 2)
    elif which == 2:
        out = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[dims - 1](x, taps, stride, taps // 2)
    else:
        out = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)[dims - 1](x, r.choice((1, 2, 4)))
    backward(out)


def transforms(r: random.Random) -> None:
    """Spectra of sounds and images."""
    which, batch = r.randrange(5), near(r, (1, 8, 16, 64, 256))
    if which < 2:
        window, length = r.choice((256, 400, 512, 512, 1024, 1024, 2048)), near(r, (16000, 48000, 160000))
        spectrum = torch.stft(
            randn(batch, length),
            window,
            window // r.choice((2, 4)),
            window=torch.ones(window, device="cuda"),
            return_complex=True,
        )
        if which == 1:
            torch.view_as_real(spectrum).pow(2).sum(-1)
    elif which == 2:
        y = torch.fft.rfft(randn(batch, near(r, (100, 512, 1000, 4096, 30000, 100000)), grad=True))
        torch.view_as_real(y).sum().backward()
    elif which == 3:
        size = near(r, (32, 64, 85, 128, 224, 256, 512))
        x = randn(batch, r.choice((1, 3, 16, 32)), size, size, grad=True)
        torch.fft.irfft2(torch.fft.rfft2(x), s=(size, size)).sum().backward()
    else:
        torch.fft.ifft(torch.fft.fft(randn(batch, near(r, (64, 1000, 2048, 10007)), dtype=torch.complex64)))


def speech(r: random.Random) -> None:
    """CTC."""
    steps, batch, classes = (
        near(r, (50, 100, 200, 400, 800)),
        r.choice((4, 8, 16, 32)),
        r.choice((29, 32, 80, 500, 1000, 5000)),
    )
    target = max(1, steps // r.choice((3, 5, 8)))
    lengths = torch.full((batch,), steps, dtype=torch.int32)
    x = randn(steps, batch, classes, grad=True)
    words = torch.randint(1, classes, (batch, target), device="cuda")
    F.ctc_loss(
        x.log_softmax(-1), words, lengths, torch.full((batch,), target, dtype=torch.int32), zero_infinity=True
    ).backward()


def products(r: random.Random) -> None:
    """Products in double precision, of integers and complex numbers, in batches of odd sizes, of vectors."""
    m, n, k = (near(r, (4, 16, 64, 200, 512, 1000, 2048, 4096)) for _ in range(3))
    batch = r.choice((1, 4, 12, 64, 96, 256, 1024))
    which, dtype = r.randrange(10), r.choice((BF16, FP16, FP32, FP32))
    if max(m * k, k * n, m * n) * (batch if which in (2, 3, 4, 5) else 1) > MOST or m * n * k * batch > 4e11:
        raise TooLarge
    if which == 0:
        randn(m, k, dtype=FP64) @ randn(k, n, dtype=FP64)
    elif which == 1:
        a, b = (
            torch.randint(-9, 9, shape, device="cuda", dtype=torch.int8)
            for shape in ((m // 8 * 8 + 24, k // 8 * 8 + 8), (n // 8 * 8 + 8, k // 8 * 8 + 8))
        )
        torch._int_mm(a, b.t())
    elif which in (2, 3):
        backward(torch.bmm(randn(batch, m, k, dtype=dtype, grad=True), randn(batch, k, n, dtype=dtype, grad=True)))
    elif which == 4:
        torch.bmm(randn(batch, m, k, dtype=FP64), randn(batch, k, n, dtype=FP64))
    elif which == 5:
        torch.baddbmm(
            randn(batch, m, n, dtype=dtype), randn(batch, m, k, dtype=dtype), randn(batch, n, k, dtype=dtype).mT
        )
    elif which == 6:
        randn(m, k, dtype=torch.complex64) @ randn(k, n, dtype=torch.complex64)
    elif which == 7:
        randn(m, k, dtype=dtype) @ randn(k, dtype=dtype)
    elif which == 8:
        torch.cdist(randn(m, k), randn(n, k))
    else:
        F.bilinear(randn(m, min(k, 64)), randn(m, min(k, 64)), randn(r.choice((4, 16, 64)), min(k, 64), min(k, 64)))


def elements(r: random.Random) -> None:
    """One element at a time, with broadcasts, and their gradients."""
    rows, width = near(r, (64, 512, 4096, 16384, 65536)), near(r, (64, 256, 768, 1000, 4096))
    dtype = r.choice((FP32, BF16, FP16, FP64))
    x, y = randn(rows, width, dtype=dtype, grad=True), randn(rows, width, dtype=dtype)
    row, column = randn(width, dtype=dtype), randn(rows, 1, dtype=dtype)
    calls: tuple[Callable[[], torch.Tensor], ...] = (
        lambda: F.softplus(x), lambda: F.elu(x), lambda: F.selu(x), lambda: F.mish(x), lambda: F.glu(x[:, : width // 2 * 2]), lambda: F.hardtanh(x), lambda: F.prelu(x, row.abs()),
        lambda: x.erf(), lambda: x.atan2(y), lambda: x.lerp(y, 0.3), lambda: torch.addcmul(x, y, row), lambda: x * column, lambda: x + row, lambda: x / column,
        lambda: x.abs().pow(1.5), lambda: x.tan(), lambda: x.sigmoid() * y.tanh(), lambda: x.clamp(-1, 1), lambda: x.fmod(0.7), lambda: torch.maximum(x, y), lambda: x.expm1(),
        lambda: F.dropout(x, 0.1), lambda: x.flip(0), lambda: x.roll(3, 1), lambda: x.t().contiguous(), lambda: torch.stack([x, y], 1), lambda: x.repeat(2, 1),
        lambda: F.huber_loss(x, y, reduction="none"), lambda: F.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction="none"), lambda: F.cosine_similarity(x, y, -1),
        lambda: F.normalize(x, dim=-1), lambda: x.std(-1), lambda: F.layer_norm(x, (width,)), lambda: F.gaussian_nll_loss(x, y, y.abs() + 1, reduction="none"), lambda: x.digamma(),
        lambda: x.tril(), lambda: x.where(y > 0, row), lambda: x.unfold(1, 8, 4).contiguous(), lambda: F.softmin(x, -1), lambda: F.logsigmoid(x), lambda: x.double().sum(0),
    )
    backward(r.choice(calls)())


COUNTS: dict[Make, int] = {
    double_backward: 40, per_sample: 40, volumes: 70, recurrent: 70, vocabularies: 50, tables: 60, scatters: 90, orders: 120, resizing: 110, norms: 90,
    pools: 70, transforms: 60, speech: 15, products: 110, elements: 130,
}


def make_all(counts: Mapping[Make, int], seed: int) -> None:
    """Calls each maker until it has made its number of operators; sizes drawn too large do not count."""
    torch.backends.cudnn.allow_tf32 = True
    r = random.Random(seed)
    for make, count in counts.items():
        made = 0
        while made < count:
            try:
                make(r)
            except TooLarge:
                continue
            made += 1
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        print(make.__name__, flush=True)


if __name__ == "__main__":
    make_all(COUNTS, int(sys.argv[1]) if len(sys.argv) > 1 else 0)

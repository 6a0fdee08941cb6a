"""Operators with indices, short dimensions or odd sizes, drawn at random. `phantora trace --missing` lists them.

    phantora trace --missing FILE.jsonl --cluster 1x1xH100 -m validation.probes.index_operators [SEED]

Gradients of narrow and wide tables, additions at indices, orders and scans, reductions over short and over long
dimensions, transposed convolutions of small images, recurrent cells and packed sequences, norms over instances,
distances, products of odd sizes, transforms, copies that reorder. `program_operators.py` draws other kinds.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from validation.probes.program_operators import (
    BF16,
    FP16,
    FP32,
    FP64,
    Make,
    TooLarge,
    backward,
    indices,
    make_all,
    near,
    randn,
)

WIDTHS = (1, 2, 3, 4, 6, 8, 16, 24, 32, 50, 64, 100, 128, 200, 256, 384, 512, 768, 1024)
MOST_BYTES = 1 << 28


def width_of(r: random.Random, *rows: int) -> int:
    """A width at which matrices of `rows` rows have at most `MOST_BYTES`. Raises TooLarge."""
    width = r.choice(WIDTHS)
    if max(rows) * width * 4 > MOST_BYTES:
        raise TooLarge
    return width


def about(r: random.Random, least: float, most: float) -> int:
    """A number between powers of two, evenly by its logarithm; half of them whole powers."""
    power = r.uniform(least, most)
    return 1 << round(power) if r.random() < 0.4 else round(2**power)


def tables(r: random.Random) -> None:
    """Gradients of tables, of rows one by one and of bags."""
    count, rows = about(r, 5, 20.5), about(r, 5, 21)
    width = width_of(r, count, rows)
    weight = randn(rows, width, dtype=r.choice((FP32, FP32, FP32, BF16, FP16)), grad=True)
    if r.random() < 0.7:
        backward(F.embedding(indices(rows, count), weight, padding_idx=r.choice((None, None, 0))))
        return
    bags = max(1, count // r.choice((1, 2, 4, 10, 20, 50)))
    offsets = torch.arange(bags, device="cuda") * (count // bags)
    mode = r.choice(("sum", "sum", "mean", "max"))
    each = torch.rand(count, device="cuda") if mode == "sum" and r.random() < 0.3 else None
    table = weight.detach().float().requires_grad_()
    backward(F.embedding_bag(indices(rows, count), table, offsets, mode=mode, per_sample_weights=each))


def additions(r: random.Random) -> None:
    """Rows added, written or reduced to where an index says."""
    nodes, edges = about(r, 4, 20), about(r, 8, 21.5)
    width = width_of(r, nodes, edges)
    dtype = r.choice((FP32, FP32, FP32, BF16, FP16))
    flat = width == 1 and r.random() < 0.7
    x = randn(nodes, dtype=dtype) if flat else randn(nodes, width, dtype=dtype)
    message = randn(edges, dtype=dtype) if flat else randn(edges, width, dtype=dtype)
    index = indices(nodes, edges)
    wide = index if flat else index[:, None].expand(-1, width)
    calls: tuple[Callable[[], object], ...] = (
        lambda: x.index_add_(0, index, message), lambda: x.index_add_(0, index, message), lambda: x.scatter_add_(0, wide, message),
        lambda: x.scatter_add_(0, wide, message), lambda: x.scatter_reduce_(0, wide, message, r.choice(("amax", "amin", "mean", "prod", "sum"))),
        lambda: x.scatter_reduce_(0, wide, message, r.choice(("amax", "amin"))), lambda: x.index_put_((index,), message, accumulate=True),
        lambda: x.index_put_((index,), message, accumulate=True), lambda: x.index_put_((index,), message), lambda: x.scatter_(0, wide, message),
        lambda: x.index_reduce_(0, index, message, r.choice(("mean", "amax"))), lambda: x.index_copy_(0, index, message),
        lambda: x.gather(0, wide), lambda: x.index_select(0, index), lambda: x[index], lambda: x.index_fill_(0, index, 1.0),
        lambda: x.scatter_add_(0, wide.contiguous(), message),
    )
    r.choice(calls)()


def places(r: random.Random) -> None:
    """Elements of matrices and images picked by several indices, and along a row."""
    rows, row = about(r, 4, 16), about(r, 2, 15)
    picked = min(about(r, 0, 12), 4 * row)
    if rows * max(row, picked) * 4 > MOST_BYTES:
        raise TooLarge
    x = randn(rows, row, dtype=r.choice((FP32, FP32, BF16)))
    index = indices(row, rows, picked)
    values = randn(rows, picked, dtype=x.dtype)
    lines = torch.arange(rows, device="cuda")[:, None]
    calls: tuple[Callable[[], object], ...] = (
        lambda: x.gather(1, index), lambda: x.scatter_(1, index, values), lambda: x.scatter_add_(1, index, values), lambda: x.scatter_(1, index, 1.0),
        lambda: x[lines, index], lambda: x.index_put_((lines, index), values, accumulate=True), lambda: x.scatter_reduce_(1, index, values, "amax"),
        lambda: x.index_select(1, index[0]), lambda: x[:, index[0]], lambda: x.index_add_(1, index[0], values), lambda: x.flatten().take(index),
    )
    r.choice(calls)()


def orders(r: random.Random) -> None:
    """Sorts, selections, scans, searches and counts, of rows and of one long row."""
    row = about(r, 2, 22)
    rows = 1 if r.random() < 0.3 else about(r, 0, 17)
    if rows * row * 8 > MOST_BYTES:
        raise TooLarge
    x = randn(rows, row, dtype=r.choice((FP32, FP32, BF16, FP16)))
    k, counts = (
        min(row, r.choice((1, 2, 5, 10, 20, 50, 100, 1000))),
        indices(r.choice((16, 100, 1000, 50000)), rows * row),
    )
    edges = torch.linspace(-3, 3, r.choice((10, 64, 1000, 100000)), device="cuda")
    calls: tuple[Callable[[], object], ...] = (
        lambda: x.sort(1), lambda: x.argsort(1, descending=True), lambda: counts.argsort(stable=True), lambda: x.topk(k, 1), lambda: x.topk(k, 1, largest=False),
        lambda: x.cumsum(1), lambda: x.cumsum(0), lambda: counts.cumsum(0), lambda: x.cumprod(1), lambda: x.float().logcumsumexp(1), lambda: x.cummax(1), lambda: x.cummin(0),
        lambda: x.kthvalue(max(1, row // 2), 1), lambda: x.median(1), lambda: x.float().histc(r.choice((10, 64, 1000))), lambda: torch.searchsorted(edges, x.float()),
        lambda: counts.sort(), lambda: counts.view(rows, row).sort(1), lambda: counts.bincount(minlength=100), lambda: torch.searchsorted(x.float().sort(1)[0], x.float()),
        lambda: (x > 0.5).nonzero(), lambda: x.masked_select(x > 0.5), lambda: x[x > 0.5], lambda: x.mode(1) if row <= 2048 else x.sum(), lambda: counts.to(torch.int32).sort(),
    )
    r.choice(calls)()


def reductions(r: random.Random) -> None:
    """Reductions over a short or a long dimension: the first, the middle or the last."""
    shape = [about(r, 0, 14) for _ in range(3)]
    if r.random() < 0.5:
        shape[r.randrange(3)] = r.choice((2, 3, 4, 5, 8, 9, 10, 16, 20, 32, 40, 64))
    if not 1 << 8 < shape[0] * shape[1] * shape[2] <= 1 << 26:
        raise TooLarge
    x, dim = randn(*shape, dtype=r.choice((FP32, FP32, FP32, BF16, FP16))), r.choice((0, 1, 2, 2, 2))
    calls: tuple[Callable[[], object], ...] = (
        lambda: x.max(dim), lambda: x.max(dim), lambda: x.min(dim), lambda: x.amax(dim), lambda: x.amin(dim), lambda: x.argmax(dim), lambda: x.argmin(dim),
        lambda: x.logsumexp(dim), lambda: x.var(dim), lambda: torch.var_mean(x, dim), lambda: x.std(dim), lambda: x.norm(dim=dim), lambda: x.norm(1, dim), lambda: x.norm(float("inf"), dim),
        lambda: x.sum(dim), lambda: x.mean(dim), lambda: x.prod(dim), lambda: (x > 0).any(dim), lambda: (x > 0).all(dim), lambda: (x > 0).sum(dim), lambda: x.sum([d for d in range(3) if d != dim]),
        lambda: x.softmax(dim), lambda: x.log_softmax(dim), lambda: x.aminmax(dim=dim), lambda: x.max(), lambda: x.argmax(), lambda: x.std(), lambda: x.float().norm(),
    )
    r.choice(calls)()


def transposed(r: random.Random) -> None:
    """Transposed convolutions: of one pixel, of small images, of waves, of volumes."""
    dims = r.choice((1, 2, 2, 2, 3))
    size = r.choice(((1, 32, 64, 250, 1000, 4000), (1, 1, 2, 4, 7, 8, 16, 32, 64), (1, 2, 4, 8, 16))[dims - 1])
    taps, stride = r.choice(((4, 1), (4, 2), (4, 2), (2, 2), (3, 2), (3, 1), (16, 8), (8, 4), (7, 1)))
    if (taps > 4 and dims > 1) or (size == 1 and r.random() < 0.5):
        taps, stride = 4, 1
    pad = 0 if size == 1 else (taps - stride) // 2
    channels, out = (r.choice((1, 3, 16, 32, 64, 100, 128, 256, 512, 1024)) for _ in range(2))
    batch = r.choice((1, 4, 8, 16, 32, 64, 128, 256))
    if (
        batch * channels * out * size**dims * taps**dims > 1e11
        or batch * max(channels, out) * (size * stride) ** dims > 1 << 26
    ):
        raise TooLarge
    kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1]
    dtype = r.choice((FP32, FP32, FP32, BF16, FP16))
    module = kind(channels, out, taps, stride, pad, bias=r.random() < 0.5).to("cuda", dtype)
    backward(module(randn(batch, channels, *[size] * dims, dtype=dtype, grad=channels > 3)))


def waves(r: random.Random) -> None:
    """Convolutions of sequences, and images that the filter covers as a whole."""
    dtype = r.choice((FP32, FP32, BF16, FP16))
    channels, out, batch = (
        r.choice((1, 3, 16, 32, 64, 128, 256, 512)),
        r.choice((1, 16, 32, 64, 128, 256, 512)),
        r.choice((1, 8, 16, 32, 64, 128)),
    )
    module: nn.Module
    shape: tuple[int, ...]
    if r.random() < 0.6:
        length, taps = about(r, 5, 14), r.choice((1, 3, 3, 5, 7, 11))
        shape = (batch, channels, length)
        module = nn.Conv1d(channels, out, taps, r.choice((1, 1, 2)), taps // 2, r.choice((1, 1, 2)))
    else:
        size = r.choice((4, 4, 7, 8))
        shape, length = (batch, channels, size, size), size * size
        taps = length
        module = nn.Conv2d(channels, out, size)
    if batch * channels * out * length * taps > 2e11 or batch * max(channels, out) * length > 1 << 26:
        raise TooLarge
    x = randn(*shape, dtype=dtype, grad=True)
    y = module.to("cuda", dtype)(x)
    if r.random() < 0.4:
        (grad,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
        grad.pow(2).sum().backward()
    else:
        backward(y)


def cells(r: random.Random) -> None:
    """Recurrent cells, and layers of packed sequences."""
    hidden, batch = near(r, (32, 64, 128, 256, 512, 1024)), near(r, (1, 8, 32, 64, 128, 256))
    if r.random() < 0.5:
        cell = r.choice((nn.LSTMCell, nn.GRUCell))(hidden, hidden).cuda()
        out = cell(randn(batch, hidden, grad=True))
        backward(out[0] if isinstance(out, tuple) else out)
        return
    steps = near(r, (10, 20, 50, 100))
    if batch * steps * hidden > 1 << 23:
        raise TooLarge
    layers, both = r.choice((1, 1, 2, 2, 3)), r.random() < 0.5
    layer = r.choice((nn.LSTM, nn.LSTM, nn.GRU))(near(r, (64, 256, 300)), hidden, layers, bidirectional=both)
    lengths = sorted((r.randrange(max(1, steps // 5), steps + 1) for _ in range(batch)), reverse=True)
    lengths[0] = steps
    dtype = r.choice((FP32, FP32, BF16))
    x = pack_padded_sequence(randn(steps, batch, layer.input_size, dtype=dtype, grad=True), torch.tensor(lengths))
    backward(layer.to("cuda", dtype)(x)[0].data)


def norms(r: random.Random) -> None:
    """Norms over instances, groups and batches of small images and sequences; rows of odd widths."""
    dims, channels, batch = (
        r.choice((0, 1, 2, 2, 2)),
        near(r, (8, 16, 32, 64, 128, 256, 512)),
        r.choice((1, 2, 8, 16, 64, 128, 256)),
    )
    size = near(r, ((1,), (16, 100, 500, 2000), (4, 7, 8, 16, 32, 56, 64, 128))[dims])
    dtype = r.choice((FP32, FP32, BF16, FP16))
    kind: nn.Module
    if dims == 0:
        rows, width = about(r, 4, 18), near(r, (16, 32, 64, 96, 128, 256, 512, 1024))
        if rows * width > 1 << 25:
            raise TooLarge
        x = randn(rows, width, dtype=dtype)
        kind = r.choice((nn.LayerNorm, nn.LayerNorm, nn.BatchNorm1d, nn.RMSNorm))(width)
    else:
        if batch * channels * size**dims > 1 << 25:
            raise TooLarge
        x = randn(batch, channels, *[size] * dims, dtype=dtype)
        which = r.randrange(4)
        if which == 0:
            kind = nn.GroupNorm(r.choice([g for g in (1, 2, 4, 8, 16, 32) if channels % g == 0]), channels)
        elif which == 1:
            kind = (nn.BatchNorm1d, nn.BatchNorm2d)[dims - 1](channels)
        else:
            kind = (nn.InstanceNorm1d, nn.InstanceNorm2d)[dims - 1](channels, affine=r.random() < 0.5)
    backward(kind.to("cuda", dtype)(x.requires_grad_()))


def products(r: random.Random) -> None:
    """Distances, products of odd sizes, of many small matrices, with a vector."""
    m, n, k = about(r, 0, 12), about(r, 0, 12), about(r, 0, 11)
    batch, dtype = about(r, 0, 13), r.choice((FP32, FP32, FP32, BF16, FP16))
    which = r.randrange(8)
    if which < 4 and (batch * max(m * k, k * n, m * n) > 1 << 25 or batch * m * n * k > 5e10):
        raise TooLarge
    if which < 3:
        backward(torch.bmm(randn(batch, m, k, dtype=dtype, grad=True), randn(batch, k, n, dtype=dtype, grad=True)))
    elif which == 3:
        torch.bmm(randn(batch, k, m, dtype=dtype).mT, randn(batch, n, k, dtype=dtype).mT)
    elif which == 4:
        a, b = randn(m, k, grad=True), randn(n, k, grad=True)
        backward(torch.cdist(a, b, compute_mode=r.choice(("use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist"))))
    elif which == 5:
        a, b = randn(m, k, grad=True), randn(n, k, grad=True)
        backward(torch.cdist(a, b, p=r.choice((1.0, 1.0, 3.0))))
    elif which == 6:
        backward(randn(m, k, dtype=dtype, grad=True) @ randn(k, n, dtype=dtype, grad=True))
    else:
        rows = about(r, 8, 18)
        if rows * k > 1 << 26:
            raise TooLarge
        backward(randn(rows, k, dtype=dtype, grad=True) @ randn(k, r.choice((1, 2, 3, 8, 16)), dtype=dtype, grad=True))


def transforms(r: random.Random) -> None:
    """Fourier transforms along the last and other dimensions, of one to three dimensions."""
    which, batch = r.randrange(5), about(r, 0, 12)
    length = r.choice((r.choice((8, 16, 24, 32, 48, 64, 96, 128, 192, 256)), about(r, 5, 14)))
    if batch * length > 1 << 24:
        raise TooLarge
    if which < 2:
        y = torch.fft.rfft(randn(batch, length, grad=True))
        torch.fft.irfft(y * 2, n=length).sum().backward()
    elif which == 2:
        x = randn(batch, length, r.choice((1, 8, 64)), grad=True)
        torch.view_as_real(torch.fft.rfft(x, dim=1)).sum().backward()
    elif which == 3:
        size = r.choice((16, 28, 32, 64, 96, 128, 256))
        if batch * size * size > 1 << 24:
            raise TooLarge
        x = randn(batch, size, size, grad=True)
        torch.fft.irfft2(torch.fft.rfft2(x), s=(size, size)).sum().backward()
    else:
        torch.fft.ifft(torch.fft.fft(randn(batch, length, dtype=torch.complex64)))


def samples(r: random.Random) -> None:
    """Images sampled and resized."""
    batch, channels, size = r.choice((1, 2, 8, 16, 64)), r.choice((1, 3, 16, 64, 128)), near(r, (7, 16, 32, 64, 128))
    if batch * channels * size * size > 1 << 23:
        raise TooLarge
    x = randn(batch, channels, size, size, dtype=r.choice((FP32, FP32, BF16, FP16)), grad=True)
    which = r.randrange(6)
    if which < 3:
        to = near(r, (8, 16, 32, 64))
        grid = randn(batch, to, to, 2, dtype=x.dtype).clamp(-1, 1).requires_grad_(r.random() < 0.7)
        out = F.grid_sample(x, grid, mode=r.choice(("bilinear", "bilinear", "nearest")), align_corners=False)
    elif which == 3:
        out = F.interpolate(x, size=near(r, (8, 16, 32, 64, 128)), mode="bilinear", align_corners=r.random() < 0.5)
    elif which == 4:
        out = F.interpolate(x, scale_factor=r.choice((0.5, 2, 3)), mode="nearest")
    else:
        depth = r.choice((4, 8, 16))
        z = randn(1, r.choice((1, 4, 32)), depth, size, size, grad=True)
        out = F.grid_sample(z, randn(1, 1, 1, about(r, 8, 18), 3).clamp(-1, 1), align_corners=False)
    backward(out)


def layouts(r: random.Random) -> None:
    """Copies that join, repeat, turn or mask."""
    rows, width = about(r, 2, 17), about(r, 1, 12)
    if rows * width > 1 << 25:
        raise TooLarge
    x = randn(rows, width, dtype=r.choice((FP32, FP32, BF16, FP16)))
    many = min(r.choice((2, 3, 8, 20, 60)), max(2, (1 << 25) // (rows * width)))
    repeats = indices(4, rows)
    calls: tuple[Callable[[], object], ...] = (
        lambda: torch.cat([x] * many), lambda: torch.cat([x] * many, 1), lambda: torch.stack([x] * many, 1), lambda: x.roll(r.choice((1, width // 2)), 1), lambda: x.roll(1, 0),
        lambda: x.flip(0), lambda: x.flip(1), lambda: x.repeat_interleave(r.choice((2, 4, 15)), 0), lambda: x.repeat_interleave(repeats, 0), lambda: x.tril(), lambda: x.triu(1),
        lambda: x.masked_fill(x > 0, 0), lambda: x.t().contiguous(), lambda: x.repeat(2, 1), lambda: F.pad(x, (1, 1)), lambda: x.diff(dim=0), lambda: x.where(x[:, :1] > 0, x[:1]),
        lambda: F.one_hot(indices(min(width, 1000), rows), min(width, 1000)), lambda: x.unfold(0, min(rows, 4), 2).contiguous(), lambda: x.view(-1)[::2].contiguous(),
        lambda: torch.tril_indices(min(rows, 2000), min(rows, 2000), device="cuda"), lambda: x.split(max(1, rows // 3))[0].clone(), lambda: x[:, : max(1, width // 2)].contiguous(),
    )
    r.choice(calls)()


def elements(r: random.Random) -> None:
    """Integers and double precision, small results of wide operands, short last dimensions."""
    rows, width = about(r, 2, 20), r.choice((1, 2, 3, 4, 8, 16, 64, 256))
    if rows * width > 1 << 24:
        raise TooLarge
    i, x = indices(1000, rows, width), randn(rows, width, dtype=r.choice((FP32, FP64, FP64)))
    row, column = x[:1], x[:, :1]
    calls: tuple[Callable[[], object], ...] = (
        lambda: i * 7 + 3, lambda: i % 13, lambda: i // 4, lambda: i ^ (i * 31), lambda: (i > 3) & (i < 9), lambda: i.float(), lambda: i.clamp(0, 63), lambda: i == i[:, :1],
        lambda: x * column, lambda: x + row, lambda: (x - row) ** 2, lambda: x.exp(), lambda: x.sin(), lambda: x.floor().long(), lambda: torch.where(x > 0, x, row), lambda: x / column,
        lambda: x.pow(0.9), lambda: x.double().sum(-1), lambda: torch.maximum(x, row), lambda: x.abs().sqrt().mean(), lambda: x[:, None] - x[: min(rows, 4)][None] if rows * width < 1 << 22 else x,
        lambda: torch.rand_like(x) < 0.5, lambda: torch.randint(0, 99, (rows, width), device="cuda"), lambda: torch.randperm(rows, device="cuda"), lambda: x.sign() * x.abs().log1p(),
    )
    r.choice(calls)()


COUNTS: dict[Make, int] = {
    tables: 330, additions: 520, places: 180, orders: 500, reductions: 700, transposed: 220, waves: 120, cells: 140, norms: 200, products: 420, transforms: 160, samples: 160,
    layouts: 260, elements: 220,
}


if __name__ == "__main__":
    make_all(COUNTS, int(sys.argv[1]) if len(sys.argv) > 1 else 0)

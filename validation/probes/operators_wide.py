"""Operators with sizes that nobody chose: random ones, in the ranges of models. `phantora trace --missing` lists them.

    phantora trace --missing FILE.jsonl --cluster 1x1xH100 -m validation.probes.operators_wide [SEED]

Networks that the tables know stay near each other: channels are powers of two, images 224 pixels wide. These are what is
between, and kinds that few of them have: transposed and dilated convolutions, evaluation, recurrent layers, odd lengths.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

DTYPES = (torch.bfloat16, torch.bfloat16, torch.float16, torch.float32)
WIDTHS = (
    3,
    16,
    24,
    32,
    40,
    45,
    48,
    64,
    72,
    80,
    96,
    112,
    128,
    144,
    160,
    192,
    230,
    256,
    320,
    384,
    448,
    512,
    640,
    768,
    1024,
)
MOST = 1 << 27  # elements of an operand
Make = Callable[[random.Random], None]


def tensor(*shape: int, dtype: torch.dtype, grad: bool = True, last: bool = False) -> torch.Tensor:
    x = torch.randn(*shape, device="cuda", dtype=dtype)
    if last and len(shape) in (4, 5):
        x = x.contiguous(memory_format=torch.channels_last if len(shape) == 4 else torch.channels_last_3d)
    return x.requires_grad_(grad and dtype.is_floating_point)


def trained(module: nn.Module, x: torch.Tensor, *more: torch.Tensor) -> None:
    """Forward and backward."""
    out = module.to("cuda", x.dtype)(x, *more)
    out = out[0] if isinstance(out, tuple) else out
    out.backward(torch.ones_like(out))


def image(r: random.Random, dims: int, channels: int) -> tuple[int, ...]:
    """A shape of at most MOST elements."""
    sizes = (
        (64, 500, 1000, 2048, 8000, 16000),
        (7, 14, 20, 28, 33, 50, 56, 64, 80, 112, 160, 224),
        (4, 8, 14, 16, 28, 32, 56),
    )[dims - 1]
    while True:
        shape = (r.choice((1, 2, 4, 8, 16, 24, 32, 64, 128)), channels, *(r.choice(sizes) for _ in range(dims)))
        if torch.Size(shape).numel() <= MOST // 4:
            return shape


def convolution(r: random.Random) -> None:
    dims = r.choice((1, 2, 2, 2, 3))
    groups = r.choice((1, 1, 1, 1, 2, 4, 8))
    channels, out = (r.choice(WIDTHS[1:]) // 8 * 8 for _ in range(2))
    kernel = r.choice((1, 1, 3, 3, 3, 3, 5, 7))
    given: dict[str, Any] = {"stride": r.choice((1, 1, 2)), "padding": kernel // 2, "groups": groups, "bias": r.random() < 0.5}
    if r.random() < 0.2:
        given |= {"dilation": r.choice((2, 4, 8)), "padding": 2}
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    x = tensor(*image(r, dims, channels), dtype=r.choice(DTYPES), last=r.random() < 0.5)
    module: nn.Module = kind(channels, out, kernel, **given)
    if dims == 2 and r.random() < 0.5:
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    trained(module, x)


def transposed(r: random.Random) -> None:
    dims = r.choice((1, 2, 2, 2, 3))
    channels, out = r.choice(WIDTHS[3:]) // 8 * 8, r.choice(WIDTHS)
    kernel, stride, padding = r.choice(((2, 2, 0), (4, 2, 1), (3, 2, 1), (3, 1, 1), (16, 8, 4), (4, 1, 0)))
    x = tensor(*image(r, dims, channels), dtype=r.choice(DTYPES), last=r.random() < 0.5)
    if x.numel() * stride**dims > MOST:
        return
    trained(
        (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1](
            channels, out, kernel, stride, padding, bias=r.random() < 0.5
        ),
        x,
    )


def norm(r: random.Random) -> None:
    dims, channels, dtype = r.choice((1, 2, 2, 3)), r.choice(WIDTHS[3:]) // 8 * 8, r.choice(DTYPES)
    x = tensor(*image(r, dims, channels), dtype=dtype, last=r.random() < 0.4)
    which = r.randrange(5)
    if which == 0:
        trained((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims - 1](channels), x)
    elif which == 1:
        (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims - 1](channels).cuda().eval()(x)
    elif which == 2:
        trained(nn.GroupNorm(r.choice((1, 4, 8)), channels), x)
    else:
        width = r.choice(WIDTHS[3:]) * r.choice((1, 2, 4))
        rows = tensor(r.choice((1, 8, 100, 512, 3000, 16384, 50000)), width, dtype=dtype)
        trained((nn.LayerNorm if which == 3 else nn.RMSNorm)(width), rows)


def pool(r: random.Random) -> None:
    dims, channels = r.choice((1, 2, 2, 3)), r.choice(WIDTHS[3:])
    x = tensor(*image(r, dims, channels), dtype=r.choice(DTYPES), last=r.random() < 0.5)
    size = r.choice((2, 2, 3, 5))
    if r.random() < 0.3:
        trained((nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[dims - 1](r.choice((1, 1, 2, 6))), x)
    elif r.random() < 0.5:
        trained((nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)[dims - 1](size, r.choice((1, 2)), size // 2), x)
    else:
        trained((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)[dims - 1](size, r.choice((1, 2)), size // 2), x)


def resize(r: random.Random) -> None:
    x = tensor(*image(r, 2, r.choice(WIDTHS)), dtype=r.choice(DTYPES), last=r.random() < 0.5)
    which = r.randrange(5)
    if x.numel() > MOST // 8:
        return
    if which < 3:
        mode = ("nearest", "bilinear", "bicubic")[which]
        out = F.interpolate(x, scale_factor=r.choice((2, 2, 4, 0.5)), mode=mode)
    elif which == 3:
        grid = torch.rand(x.shape[0], x.shape[2], x.shape[3], 2, device="cuda", dtype=x.dtype)
        out = F.grid_sample(x, grid, align_corners=False)
    else:
        out = F.pad(x, (1, 2, 3, 0), mode=r.choice(("reflect", "replicate", "constant")))
    out.backward(torch.ones_like(out))


def recurrent(r: random.Random) -> None:
    kind, hidden = r.choice((nn.LSTM, nn.LSTM, nn.GRU, nn.RNN)), r.choice((64, 128, 200, 256, 400, 512, 650, 1024))
    given = {"batch_first": r.random() < 0.5, "bidirectional": r.random() < 0.3, "num_layers": r.choice((1, 1, 2, 3))}
    rows, length = r.choice((8, 16, 32, 64, 128, 256)), r.choice((10, 20, 35, 64, 100, 200))
    shape = (rows, length) if given["batch_first"] else (length, rows)
    trained(
        kind(hidden, hidden, **given),
        tensor(*shape, hidden, dtype=r.choice((torch.float32, torch.float32, torch.float16))),
    )


def attention(r: random.Random) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backend = r.choice((SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION))
    dtype = r.choice(DTYPES[:3])
    batch, heads, dim = (
        r.choice((1, 2, 4, 8, 16, 32)),
        r.choice((4, 8, 12, 16, 32)),
        r.choice((32, 64, 64, 96, 128, 128)),
    )
    length = r.choice((50, 77, 128, 197, 256, 400, 577, 1000, 1024, 1500, 2048, 3000, 4096))
    keys = r.choice((length, length, length, 77, 1500))
    if batch * heads * length * keys > 1 << 31:
        return
    q, k, v = (tensor(batch, n, heads, dim, dtype=dtype).transpose(1, 2) for n in (length, keys, keys))
    with sdpa_kernel(backend):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=keys == length and r.random() < 0.5)
    out.backward(torch.ones_like(out))


def losses(r: random.Random) -> None:
    rows, classes = r.choice((32, 256, 1000, 4096, 12288)), r.choice((2, 10, 100, 1000, 21843, 32000, 50257, 100277))
    if rows * classes > MOST * 4:
        return
    x, y = tensor(rows, classes, dtype=r.choice(DTYPES[2:])), torch.randint(0, classes, (rows,), device="cuda")
    which = r.randrange(6)
    if which < 3:
        F.cross_entropy(x, y, label_smoothing=r.choice((0.0, 0.0, 0.1))).backward()
    elif which == 3:
        F.binary_cross_entropy_with_logits(x, torch.ones_like(x)).backward()
    elif which == 4:
        F.kl_div(x.log_softmax(-1), torch.ones_like(x), reduction="batchmean").backward()
    else:
        r.choice((F.mse_loss, F.smooth_l1_loss, F.l1_loss))(x, torch.zeros_like(x)).backward()


def rows_and_columns(r: random.Random) -> None:
    rows, width = r.choice((7, 64, 500, 4096, 20000, 100000)), r.choice((4, 30, 64, 100, 257, 512, 1000, 2048, 8192))
    if rows * width > MOST:
        return
    x = tensor(rows, width, dtype=r.choice(DTYPES), grad=False)
    dim = r.choice((0, 1, 1))
    index = torch.randint(0, rows, (r.choice((10, 1000, 50000)),), device="cuda")
    calls: tuple[Callable[[], object], ...] = (
        lambda: x.softmax(dim), lambda: x.sum(dim), lambda: x.mean(dim), lambda: x.float().var(dim), lambda: x.amax(dim),
        lambda: x.argmax(dim), lambda: x.cumsum(dim), lambda: x.topk(min(5, width), 1), lambda: x.sort(dim), lambda: x.norm(dim=dim),
        lambda: x[index], lambda: x.index_select(0, index), lambda: x.t().contiguous(), lambda: torch.cat([x, x], dim),
        lambda: x.masked_fill(x > 0, 0), lambda: torch.where(x > 0, x, 0), lambda: x.roll(1, dim), lambda: x.flip(dim),
        lambda: torch.zeros_like(x).index_add_(0, index % rows, x[index % rows]), lambda: F.normalize(x.float(), dim=dim),
        lambda: x.std(), lambda: x.clamp(0, 1), lambda: x.float().logsumexp(dim), lambda: torch.stack([x, x], 1), lambda: x.tril(),
        lambda: F.one_hot(index % 100, 100), lambda: F.embedding(index % rows, x), lambda: x.repeat(2, 1), lambda: x.float().exp(),
    )
    r.choice(calls)()


def optimizer(r: random.Random) -> None:
    sizes = [
        r.choice(((512,), (1024, 256), (768, 3072), (3, 64, 7, 7), (1000, 2048), (64,)))
        for _ in range(r.choice((4, 20, 100)))
    ]
    parameters = [tensor(*size, dtype=r.choice((torch.float32, torch.bfloat16))) for size in sizes]
    for p in parameters:
        p.grad = torch.ones_like(p)
    kind, given = r.choice(
        (
            (torch.optim.SGD, {"momentum": 0.9}), (torch.optim.Adam, {}), (torch.optim.AdamW, {"fused": True}), (torch.optim.RMSprop, {}),
            (torch.optim.Adagrad, {}), (torch.optim.NAdam, {}), (torch.optim.RAdam, {}), (torch.optim.Adam, {"amsgrad": True}),
        )
    )
    nn.utils.clip_grad_norm_(parameters, 1.0)
    steps = kind(parameters, lr=1e-3, **given)
    steps.step()
    steps.step()


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    r = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    counts: dict[Make, int] = {
        convolution: 130, transposed: 70, norm: 70, pool: 60, resize: 50, recurrent: 40, attention: 60, losses: 40,
        rows_and_columns: 150, optimizer: 16,
    }
    for make, count in counts.items():
        for _ in range(count):
            try:
                make(r)
            except (RuntimeError, ValueError) as error:
                print(f"{make.__name__}: {str(error)[:150]}", flush=True)
            torch.cuda.synchronize()
        torch.cuda.empty_cache()
        print(make.__name__, flush=True)


if __name__ == "__main__":
    main()

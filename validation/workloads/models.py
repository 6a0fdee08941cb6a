"""Training steps of models unlike the samples, to compare real times with simulated ones. One JSON line.

    python -m validation.workloads.models MODEL [--batch N] [--seq N] [--precision fp32|amp] [--compile] [--optimizer NAME] [--width N]

MODEL: gpt2, bert, vit, unet, convnext, efficientnet, vgg, lstm, moe, t5, dlrm, mlp. Plain torch, one GPU, synthetic data.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import cast

import torch
import torch.nn as nn
import torch.nn.functional as F

Loss = Callable[[], torch.Tensor]


class Block(nn.Module):
    """A transformer block as GPT-2 and BERT have it: LayerNorm, GELU, dropout, fused attention."""

    def __init__(self, width: int, heads: int, causal: bool, dropout: float, before: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.dropout, self.before = heads, causal, dropout, before
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout))
        self.drop = nn.Dropout(dropout)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        b, s, w = x.shape
        q, k, v = (t.view(b, s, self.heads, w // self.heads).transpose(1, 2) for t in self.qkv(x).split(w, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, dropout_p=self.dropout if self.training else 0.0)
        return self.drop(self.out(y.transpose(1, 2).reshape(b, s, w)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.before:
            x = x + self.attend(self.first(x))
            return x + self.mlp(self.second(x))
        x = self.first(x + self.attend(x))
        return self.second(x + self.mlp(x))


class Language(nn.Module):
    def __init__(self, vocabulary: int, seq: int, width: int, layers: int, heads: int, causal: bool, dropout: float) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(seq, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, causal, dropout, causal) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device)))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


class Vit(nn.Module):
    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, 197, width))
        self.blocks = nn.Sequential(*(Block(width, heads, False, 0.0, True) for _ in range(layers)), nn.LayerNorm(width))
        self.head = nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1).to(x.dtype), x], 1) + self.places.to(x.dtype)
        return self.head(self.blocks(x)[:, 0])


class Residual(nn.Module):
    """Residual block of a diffusion U-Net: GroupNorm, SiLU and 3 x 3 convolutions."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.one, self.two = nn.GroupNorm(32, into), nn.GroupNorm(32, out)
        self.a, self.b = nn.Conv2d(into, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.skip = nn.Conv2d(into, out, 1) if into != out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.skip(x) + self.b(F.silu(self.two(self.a(F.silu(self.one(x))))))


class Unet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        w = (width, 2 * width, 4 * width)
        self.into = nn.Conv2d(4, w[0], 3, padding=1)
        self.down = nn.ModuleList([Residual(w[0], w[0]), Residual(w[0], w[1]), Residual(w[1], w[2])])
        self.middle = nn.Sequential(Residual(w[2], w[2]), Residual(w[2], w[2]))
        self.up = nn.ModuleList([Residual(2 * w[2], w[1]), Residual(2 * w[1], w[0]), Residual(2 * w[0], w[0])])
        self.shrink = nn.ModuleList([nn.Conv2d(c, c, 3, 2, 1) for c in w])
        self.out = nn.Conv2d(w[0], 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, kept = self.into(x), []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            x = block(x)
            kept.append(x)
            x = shrink(x)
        x = self.middle(x)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0, mode="nearest"), kept.pop()], 1))
        return self.out(x)


class ConvNext(nn.Module):
    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.deep = nn.Conv2d(width, width, 7, padding=3, groups=width)
            self.norm, self.a, self.b = nn.LayerNorm(width, 1e-6), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.scale = nn.Parameter(torch.full((width,), 1e-6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.b(F.gelu(self.a(self.norm(self.deep(x).permute(0, 2, 3, 1)))))
            return x + (self.scale * y).permute(0, 3, 1, 2)

    def __init__(self) -> None:
        super().__init__()
        widths, depths = (96, 192, 384, 768), (3, 3, 9, 3)
        layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4)]
        for i, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            if i:
                layers += [nn.GroupNorm(1, widths[i - 1]), nn.Conv2d(widths[i - 1], width, 2, 2)]
            layers += [self.Block(width) for _ in range(depth)]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(768, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x).mean((2, 3)))


class Inverted(nn.Module):
    """MobileNet's and EfficientNet's block, with squeeze and excitation."""

    def __init__(self, into: int, out: int, stride: int, wider: int, taps: int) -> None:
        super().__init__()
        w = into * wider
        self.grow = nn.Sequential(nn.Conv2d(into, w, 1, bias=False), nn.BatchNorm2d(w), nn.SiLU(True))
        self.deep = nn.Sequential(nn.Conv2d(w, w, taps, stride, taps // 2, groups=w, bias=False), nn.BatchNorm2d(w), nn.SiLU(True))
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(w, into // 4, 1), nn.SiLU(True), nn.Conv2d(into // 4, w, 1), nn.Sigmoid())
        self.shrink = nn.Sequential(nn.Conv2d(w, out, 1, bias=False), nn.BatchNorm2d(out))
        self.same = stride == 1 and into == out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.deep(self.grow(x))
        y = self.shrink(y * self.squeeze(y))
        return x + y if self.same else y


def efficientnet() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.SiLU(True)]
    into = 32
    for out, depth, stride, wider, taps in ((16, 1, 1, 1, 3), (24, 2, 2, 6, 3), (40, 2, 2, 6, 5), (80, 3, 2, 6, 3), (112, 3, 1, 6, 5), (192, 4, 2, 6, 5), (320, 1, 1, 6, 3)):
        for i in range(depth):
            layers.append(Inverted(into, out, stride if i == 0 else 1, wider, taps))
            into = out
    return nn.Sequential(*layers, nn.Conv2d(320, 1280, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


def vgg() -> nn.Module:
    layers: list[nn.Module] = []
    into = 3
    for out in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
        layers += [nn.Conv2d(into, out, 3, padding=1), nn.ReLU(True)] if out else [nn.MaxPool2d(2)]
        into = out or into
    wide = [nn.Flatten(), nn.Linear(25088, 4096), nn.ReLU(True), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(True), nn.Dropout()]
    return nn.Sequential(*layers, *wide, nn.Linear(4096, 1000))


class Moe(nn.Module):
    """Blocks with experts of which each word visits two, in turn; no capacity limit."""

    def __init__(self, width: int, layers: int, experts: int) -> None:
        super().__init__()
        self.words = nn.Embedding(32000, width)
        self.attention = nn.ModuleList(Block(width, width // 64, True, 0.0, True) for _ in range(layers))
        self.gates = nn.ModuleList(nn.Linear(width, experts, bias=False) for _ in range(layers))
        self.experts = nn.ModuleList(nn.ModuleList(nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)) for _ in range(experts)) for _ in range(layers))
        self.head = nn.Linear(width, 32000, bias=False)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for attention, gate, experts in zip(self.attention, self.gates, cast("Iterable[nn.ModuleList]", self.experts), strict=True):
            x = attention(x)
            flat = x.view(-1, x.shape[-1])
            weights, _ = gate(flat).softmax(-1).topk(2, -1)
            y = torch.zeros_like(flat)
            share = flat.shape[0] // len(experts)
            for i, expert in enumerate(experts):  # balanced, so that sizes do not depend on values
                part = slice(i * share, (i + 1) * share)
                y = y + F.pad(weights[part, :1] * expert(flat[part]), (0, 0, i * share, flat.shape[0] - (i + 1) * share))
            x = x + y.view_as(x)
        return F.cross_entropy(self.head(x).view(-1, 32000), labels.view(-1))


class Dlrm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(100_000, 64, mode="sum") for _ in range(16))
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(64 + 136, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        bottom = self.bottom(dense)
        all_ = torch.stack([bottom, *(table(ids[:, i]) for i, table in enumerate(self.tables))], 1)
        pairs = torch.bmm(all_, all_.transpose(1, 2))
        rows, columns = torch.tril_indices(17, 17, -1)
        return self.top(torch.cat([bottom, pairs[:, rows, columns]], 1)).squeeze(1)


def build(name: str, batch: int, seq: int, device: str, width: int = 650) -> tuple[nn.Module, Loss]:
    """The model and a closure that gives its loss."""

    def ids(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, shape or (batch, seq), device=device)

    def images(size: int = 224) -> torch.Tensor:
        return torch.randn(batch, 3, size, size, device=device)

    def words(model: nn.Module, vocabulary: int) -> tuple[nn.Module, Loss]:
        x, y = ids(vocabulary), ids(vocabulary)
        return model.to(device), lambda: model(x, y)

    def classes(model: nn.Module, x: torch.Tensor) -> tuple[nn.Module, Loss]:
        y = ids(1000, batch)
        return model.to(device), lambda: F.cross_entropy(model(x).float(), y)

    if name == "gpt2":
        return words(Language(50257, seq, 768, 12, 12, True, 0.1), 50257)
    if name == "bert":
        return words(Language(30522, seq, 1024, 24, 16, False, 0.1), 30522)
    if name == "moe":
        return words(Moe(1024, 6, 8), 32000)
    if name == "vit":
        return classes(Vit(768, 12, 12), images())
    if name == "convnext":
        return classes(ConvNext(), images())
    if name == "efficientnet":
        return classes(efficientnet(), images())
    if name == "vgg":
        return classes(vgg(), images())
    if name == "unet":
        unet = Unet(128).to(device)
        x, noise = torch.randn(batch, 4, 64, 64, device=device), torch.randn(batch, 4, 64, 64, device=device)
        return unet, lambda: F.mse_loss(unet(x).float(), noise)
    if name == "lstm":
        body = nn.LSTM(width, width, 2, dropout=0.5, batch_first=True)
        net = nn.ModuleDict({"words": nn.Embedding(10000, width), "lstm": body, "head": nn.Linear(width, 10000)}).to(device)
        inputs, labels = ids(10000), ids(10000)
        return net, lambda: F.cross_entropy(net["head"](net["lstm"](net["words"](inputs))[0]).view(-1, 10000), labels.view(-1))
    if name == "t5":
        t5 = nn.ModuleDict({"words": nn.Embedding(32128, 512), "body": nn.Transformer(512, 8, 6, 6, 2048, 0.1, F.relu, batch_first=True, norm_first=True), "head": nn.Linear(512, 32128)}).to(device)
        source, target, labels = ids(32128), ids(32128), ids(32128)
        mask = nn.Transformer.generate_square_subsequent_mask(seq, device=torch.device(device))
        return t5, lambda: F.cross_entropy(t5["head"](t5["body"](t5["words"](source), t5["words"](target), tgt_mask=mask)).view(-1, 32128), labels.view(-1))
    if name == "dlrm":
        dlrm = Dlrm().to(device)
        dense, sparse, clicks = torch.randn(batch, 13, device=device), ids(100_000, batch, 16, 8), torch.rand(batch, device=device)
        return dlrm, lambda: F.binary_cross_entropy_with_logits(dlrm(dense, sparse), clicks)
    if name == "mlp":
        mlp = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(4096, 4096), nn.ReLU())), nn.Linear(4096, 1000))
        return classes(mlp, torch.randn(batch, 4096, device=device))
    sys.exit(f"unknown model {name}")


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, 1e-4, fused=True),
    "adam": lambda p: torch.optim.Adam(p, 1e-4),
    "sgd": lambda p: torch.optim.SGD(p, 1e-3, momentum=0.9),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--precision", choices=("fp32", "amp"), default="amp")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="adamw")
    parser.add_argument("--width", type=int, default=650, help="of the LSTM")
    parser.add_argument("--iters", type=int, default=12)
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(0)
    model, loss_of = build(args.model, args.batch, args.seq, "cuda", args.width)
    if args.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    step = torch.compile(loss_of) if args.compile else loss_of
    optimizer = OPTIMIZERS[args.optimizer](model.parameters())
    times = []
    for _ in range(5 + args.iters):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16, enabled=args.precision == "amp"):
            loss = step()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    print(json.dumps({
        "name": "models", "world_size": 1, "config": vars(args), "params": sum(p.numel() for p in model.parameters()),
        "iter_times": times[5:], "median_iter_s": statistics.median(times[5:]), "loss": float(loss),
        "max_memory_allocated": torch.cuda.max_memory_allocated(), "max_memory_reserved": torch.cuda.max_memory_reserved(),
    }))


if __name__ == "__main__":
    main()

"""A Llama-style decoder, sized by flags, shared by the llama_* samples. Plain PyTorch."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn as nn
import torch.nn.functional as F

PEAK_FLOPS = 989e12  # dense bf16 of one H100 or H200 SXM, for the printed MFU


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder. The default is Llama 2 7B."""

    dim: int = 4096
    layers: int = 32
    heads: int = 32
    kv_heads: int = 32
    ffn: int = 11008
    vocab: int = 32000
    seq: int = 4096

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    @property
    def params(self) -> int:
        attention = 2 * self.dim * self.dim + 2 * self.dim * self.head_dim * self.kv_heads
        return self.layers * (attention + 3 * self.dim * self.ffn + 2 * self.dim) + 2 * self.vocab * self.dim + self.dim

    def flops_per_token(self) -> float:
        """Forward and backward, causal attention counted in full (the PaLM convention)."""
        return 6 * (self.params - self.vocab * self.dim) + 12 * self.layers * self.dim * self.seq


class Sizes(argparse.Action):
    """--model: the sizes of a known model; flags behind it change single ones."""

    KNOWN: ClassVar = {"llama3-8b": {"kv_heads": 8, "ffn": 14336, "vocab": 128256, "seq": 8192}}

    def __call__(self, parser: object, namespace: argparse.Namespace, value: object, _: object = None) -> None:
        vars(namespace).update(self.KNOWN[str(value)])


def add_arguments(parser: argparse.ArgumentParser, **defaults: int) -> None:
    """Adds the flags that every llama sample takes; `defaults` overrides sizes."""
    shape = Shape()
    parser.add_argument("--model", action=Sizes, choices=list(Sizes.KNOWN), help="sizes of a known model")
    for name in ("dim", "layers", "heads", "kv_heads", "ffn", "vocab", "seq"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=defaults.get(name, getattr(shape, name)))
    parser.add_argument("--batch", type=int, default=defaults.get("batch", 1), help="sequences per rank and step")
    parser.add_argument("--steps", type=int, default=defaults.get("steps", 5))
    parser.add_argument("--warmup", type=int, default=defaults.get("warmup", 2), help="steps left out of the summary")


def shape_of(args: argparse.Namespace) -> Shape:
    return Shape(args.dim, args.layers, args.heads, args.kv_heads, args.ffn, args.vocab, args.seq)


def rope_tables(shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    frequencies = 1.0 / 10000.0 ** (torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim)
    angles = torch.outer(torch.arange(shape.seq, dtype=torch.float32), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.wq = nn.Linear(shape.dim, shape.heads * self.head_dim, bias=False)
        self.wk = nn.Linear(shape.dim, shape.kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(shape.dim, shape.kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(shape.heads * self.head_dim, shape.dim, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, seq, _ = x.shape
        q, k, v = (w(x).view(batch, seq, -1, self.head_dim).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        cos, sin = cos.to(q.dtype), sin.to(q.dtype)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.size(1) != k.size(1))
        return self.wo(out.transpose(1, 2).reshape(batch, seq, -1))


class FeedForward(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.w1 = nn.Linear(shape.dim, shape.ffn, bias=False)
        self.w2 = nn.Linear(shape.ffn, shape.dim, bias=False)
        self.w3 = nn.Linear(shape.dim, shape.ffn, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.dim, eps=1e-5)
        self.attention = Attention(shape)
        self.ffn_norm = nn.RMSNorm(shape.dim, eps=1e-5)
        self.feed_forward = FeedForward(shape)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """Layers [first, last) of a decoder; the embedding with the first layer, the head with the last."""

    def __init__(self, shape: Shape, first: int = 0, last: int | None = None) -> None:
        super().__init__()
        last = shape.layers if last is None else last
        self.shape = shape
        self.tok_embeddings = nn.Embedding(shape.vocab, shape.dim) if first == 0 else None
        self.layers = nn.ModuleList(Block(shape) for _ in range(first, last))
        whole = last == shape.layers
        self.norm = nn.RMSNorm(shape.dim, eps=1e-5) if whole else None
        self.output = nn.Linear(shape.dim, shape.vocab, bias=False) if whole else None
        cos, sin = rope_tables(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    @torch.no_grad()
    def init_weights(self) -> None:
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            elif isinstance(module, nn.RMSNorm):
                nn.init.ones_(module.weight)
        cos, sin = rope_tables(self.shape)
        self.cos.copy_(cos)
        self.sin.copy_(sin)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.tok_embeddings is not None:
            x = self.tok_embeddings(x)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        if self.output is not None:
            x = self.output(self.norm(x))
        return x


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


def random_batch(shape: Shape, batch: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(0, shape.vocab, (batch, shape.seq + 1), device=device)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def train(
    step: Callable[[], torch.Tensor | None],
    shape: Shape,
    steps: int,
    warmup: int,
    tokens_per_step: int,
    world: int,
    report: bool,
) -> None:
    """Runs `step` and prints a line per step and a JSON line at the end (on the rank that reports)."""
    times = []
    for index in range(warmup + steps):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        loss = step()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        if index >= warmup:
            times.append(seconds)
        if report:
            memory = torch.cuda.max_memory_allocated() / 2**30
            text = ""
            if loss is not None:
                text = f"  loss {float(loss):.4f}"
            print(
                f"step {index + 1}{text}  {seconds * 1e3:.1f} ms  {tokens_per_step / seconds:,.0f} tokens/s"
                f"  MFU {shape.flops_per_token() * tokens_per_step / seconds / world / PEAK_FLOPS:.1%}"
                f"  memory {memory:.2f} GiB",
                flush=True,
            )
    if report and times:
        median = sorted(times)[len(times) // 2]
        print(
            json.dumps(
                {
                    "params": shape.params,
                    "world_size": world,
                    "median_step_s": median,
                    "tokens_per_s": tokens_per_step / median,
                    "mfu": shape.flops_per_token() * tokens_per_step / median / world / PEAK_FLOPS,
                    "max_memory_allocated": torch.cuda.max_memory_allocated(),
                    "max_memory_reserved": torch.cuda.max_memory_reserved(),
                }
            ),
            flush=True,
        )

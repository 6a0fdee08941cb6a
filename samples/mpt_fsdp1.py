"""Trains an MPT-style decoder with FSDP1 as Composer sets it up: bf16 parameters, fp32 reduction, at most two
all-gathers ahead, clipping, AdamW written out by tensors.

torchrun --nproc-per-node 8 samples/mpt_fsdp1.py --model 7b --batch 6

Sizes are those of MosaicML's llm-foundry (biases, learned positions, tied embedding).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import CustomPolicy
from torch.nn.attention import SDPBackend, sdpa_kernel


@dataclass(frozen=True)
class Shape:
    dim: int
    heads: int
    layers: int
    seq: int = 2048
    vocab: int = 50368


SHAPES = {
    "760m": Shape(1536, 12, 24),
    "1b": Shape(2048, 16, 24),
    "3b": Shape(2560, 20, 32),
    "7b": Shape(4096, 32, 32),
    "13b": Shape(5120, 40, 40),
    "30b": Shape(7168, 56, 48),
    "70b": Shape(8192, 64, 80),
}


class LowPrecisionLayerNorm(nn.LayerNorm):
    """Autocast would normalise in float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", enabled=False):
            return F.layer_norm(
                x.bfloat16(), self.normalized_shape, self.weight.bfloat16(), self.bias.bfloat16(), self.eps
            )


class TakeRows(torch.autograd.Function):
    """Rows of a matrix; each is taken once at most."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows)
        ctx.count = x.size(0)
        return x.gather(0, rows[:, None].expand(-1, x.size(1)))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (rows,) = ctx.saved_tensors
        whole = gradient.new_zeros(ctx.count, gradient.size(1))
        return whole.scatter_(0, rows[:, None].expand(-1, whole.size(1)), gradient), None


class PutRows(torch.autograd.Function):
    """The inverse: rows into a matrix of zeros."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rows: torch.Tensor, count: int) -> torch.Tensor:
        ctx.save_for_backward(rows)
        whole = x.new_zeros(count, x.size(1))
        whole[rows] = x
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (rows,) = ctx.saved_tensors
        return gradient[rows], None, None


def tokens_of(mask: torch.Tensor) -> torch.Tensor:
    """Numbers of the tokens that are no padding, with what else attention over sequences of any length needs.
    The host waits twice."""
    lengths = mask.sum(dim=-1, dtype=torch.int32)
    rows = mask.flatten().nonzero(as_tuple=False).flatten()
    int(lengths.max())
    F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return rows


class Block(nn.Module):
    def __init__(self, shape: Shape, unpad: bool) -> None:
        super().__init__()
        self.heads = shape.heads
        self.unpad = unpad
        self.norm_1 = LowPrecisionLayerNorm(shape.dim)
        self.qkv = nn.Linear(shape.dim, 3 * shape.dim)
        self.out = nn.Linear(shape.dim, shape.dim)
        self.norm_2 = LowPrecisionLayerNorm(shape.dim)
        self.up = nn.Linear(shape.dim, 4 * shape.dim)
        self.down = nn.Linear(4 * shape.dim, shape.dim)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, seq, dim = x.shape
        q, k, v = self.qkv(self.norm_1(x)).chunk(3, dim=2)
        rows = None
        if self.unpad:  # each of the three finds them anew
            q, k, v = (TakeRows.apply(each.flatten(0, 1), rows := tokens_of(mask)) for each in (q, k, v))
        q, k, v = (each.view(batch, seq, self.heads, -1).transpose(1, 2) for each in (q, k, v))
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        attended = attended.transpose(1, 2).reshape(batch, seq, dim)
        if rows is not None:
            attended = PutRows.apply(attended.flatten(0, 1), rows, batch * seq).view(batch, seq, dim)
        x = x + self.out(attended)
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Mpt(nn.Module):
    def __init__(self, shape: Shape, unpad: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab, shape.dim)
        self.positions = nn.Embedding(shape.seq, shape.dim)
        self.blocks = nn.ModuleList(Block(shape, unpad) for _ in range(shape.layers))
        self.norm = LowPrecisionLayerNorm(shape.dim)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = block(x, mask)
        return F.linear(self.norm(x), self.tokens.weight)


class AdamW(torch.optim.Optimizer):
    """Tensor after tensor and operation after operation, as Composer's DecoupledAdamW."""

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for group in self.param_groups:
            low, high = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = 0
                    state["first"] = torch.zeros_like(parameter)
                    state["second"] = torch.zeros_like(parameter)
                state["step"] += 1
                first, second = state["first"], state["second"]
                first.mul_(low).add_(parameter.grad, alpha=1 - low)
                second.mul_(high).addcmul_(parameter.grad, parameter.grad, value=1 - high)
                scale = (second.sqrt() / (1 - high ** state["step"]) ** 0.5).add_(group["eps"])
                parameter.addcdiv_(first, scale, value=-group["lr"] / (1 - low ** state["step"]))


def wrapped(shape: Shape, args: argparse.Namespace) -> FullyShardedDataParallel:
    with torch.device("meta"):
        model = Mpt(shape, args.unpad)
    for module in model.modules():
        if not list(module.children()):  # FSDP makes leaves real, one after the other
            module.reset_parameters = lambda: None
    if args.checkpointing:
        model.blocks = nn.ModuleList(checkpoint_wrapper(block) for block in model.blocks)
    mixed = MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16)
    blocks = set(model.blocks)
    return FullyShardedDataParallel(
        model,
        sharding_strategy=ShardingStrategy[args.strategy],
        auto_wrap_policy=CustomPolicy(lambda module: module in blocks),
        backward_prefetch=BackwardPrefetch.BACKWARD_PRE if args.prefetch else BackwardPrefetch.BACKWARD_POST,
        forward_prefetch=args.prefetch,
        mixed_precision=mixed,
        device_id=torch.cuda.current_device(),
        limit_all_gathers=True,
        use_orig_params=False,  # else a rank has what tensors happen to lie in its shard: no two ranks are equal
        param_init_fn=lambda module: module.to_empty(device="cuda", recurse=False),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=SHAPES, default="7b")
    parser.add_argument("--layers", type=int, help="instead of the model's")
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=1, help="sequences per micro batch")
    parser.add_argument("--accumulate", type=int, default=1, help="micro batches per step, all of them reduced")
    parser.add_argument("--strategy", choices=["FULL_SHARD", "SHARD_GRAD_OP"], default="FULL_SHARD")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--prefetch", action="store_true", help="all-gathers before they are needed, both ways")
    parser.add_argument("--unpad", action="store_true", help="every block takes padding out and puts it in again")
    parser.add_argument("--metrics", action="store_true", help="training metrics and sums for the log, as Composer's")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--warmup", type=int, default=2)
    args = parser.parse_args()
    shape = SHAPES[args.model]
    shape = replace(shape, layers=args.layers or shape.layers, seq=args.seq)

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    model = wrapped(shape, args)
    mask = torch.ones(args.batch, shape.seq, dtype=torch.bool, device="cuda")
    optimizer = AdamW(model.parameters(), {"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8})
    book = None
    if args.metrics:
        from mpt_metrics import Bookkeeping  # needs torchmetrics

        book = Bookkeeping()
    flops = 6.0 * args.accumulate * mask.numel() * sum(parameter.numel() for parameter in model.parameters())

    times = []
    for _ in range(args.warmup + args.steps):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        if book:
            book.begin(mask)
        for _ in range(args.accumulate):
            tokens = torch.randint(0, shape.vocab, (args.batch, shape.seq), device="cuda")
            with torch.autocast("cuda", torch.bfloat16):
                logits = model(tokens, mask)
            labels = tokens.roll(-1, dims=1)
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten()) / args.accumulate
            loss.backward()
            if book:
                book.after_backward(logits, tokens, loss)
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if book:
            book.end(flops)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    if dist.get_rank() == 0:
        step = sorted(times[args.warmup :])[args.steps // 2]
        tokens_per_gpu = args.accumulate * args.batch * shape.seq
        found = {"median_step_s": step, "tokens_per_s_per_gpu": tokens_per_gpu / step, "steps_s": times}
        print(json.dumps({**found, "max_memory_allocated": torch.cuda.max_memory_allocated()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

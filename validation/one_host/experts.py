"""Trains a stack of expert layers: tokens go to balanced experts on all ranks and come back (all_to_all).

torchrun --nproc-per-node 8 validation/one_host/experts.py --trace experts.json.gz

Prints one JSON line with the median step in seconds. With `--trace`, rank 0 writes a Kineto trace of one more step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Exchange(torch.autograd.Function):
    """all_to_all of equal parts, whose gradient goes the same way back."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        received = torch.empty_like(x)
        dist.all_to_all_single(received, x)
        return received

    @staticmethod
    def backward(ctx: object, *grads: torch.Tensor) -> torch.Tensor:
        received = torch.empty_like(grads[0])
        dist.all_to_all_single(received, grads[0].contiguous())
        return received


class Experts(nn.Module):
    """Two experts a rank; each gets an equal share of every rank's tokens."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(2, width, hidden) * 0.02)
        self.down = nn.Parameter(torch.randn(2, hidden, width) * 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sent = Exchange.apply(x)
        tokens = sent.view(2, -1, x.shape[-1])
        return x + Exchange.apply(torch.bmm(F.silu(torch.bmm(tokens, self.up)), self.down).view_as(x))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=16384, help="per rank")
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--trace", default="")
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(dist.get_rank())
    with device:
        model = nn.Sequential(*(Experts(args.width, 2 * args.width) for _ in range(args.layers))).bfloat16()
        x = torch.randn(args.tokens, args.width, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        model(x).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    times = []
    for index in range(args.steps + 4):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        if index >= 4:
            times.append(time.perf_counter() - begin)
    if dist.get_rank() == 0:
        peak = torch.cuda.max_memory_allocated()
        print(json.dumps({"median_step_s": statistics.median(times), "max_memory_allocated": peak}), flush=True)
    if args.trace:
        with torch.profiler.profile(record_shapes=True) as profile:
            step()
            torch.cuda.synchronize()
        if dist.get_rank() == 0:
            profile.export_chrome_trace(args.trace)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

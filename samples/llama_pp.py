"""Trains a Llama-style decoder with pipeline parallelism (1F1B or GPipe), one stage per rank.

torchrun --nproc-per-node 4 samples/llama_pp.py --batch 8 --microbatches 8
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from llama import Llama, add_arguments, cross_entropy, random_batch, shape_of, train


def main() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser, layers=16, kv_heads=8, ffn=14336, batch=8)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--schedule", choices=["1f1b", "gpipe"], default="1f1b")
    args = parser.parse_args()
    shape = shape_of(args)

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if shape.layers % world or args.batch % args.microbatches:
        raise SystemExit("--layers must be a multiple of the ranks, --batch of --microbatches")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    torch.manual_seed(1234)

    per_stage = shape.layers // world
    with device:
        model = Llama(shape, rank * per_stage, (rank + 1) * per_stage)
    model.init_weights()
    model.to(torch.bfloat16)
    stage = PipelineStage(model, rank, world, device)
    kind = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}[args.schedule]
    schedule = kind(stage, args.microbatches, loss_fn=cross_entropy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step() -> torch.Tensor | None:
        tokens, labels = random_batch(shape, args.batch, device)
        losses: list[torch.Tensor] = []
        if rank == world - 1:
            schedule.step(*([tokens] if world == 1 else []), target=labels, losses=losses)
        elif rank == 0:
            schedule.step(tokens)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return torch.stack(losses).mean().detach() if losses else None

    train(step, shape, args.steps, args.warmup, args.batch * shape.seq, world, rank == world - 1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

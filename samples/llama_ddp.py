"""Trains a Llama-style decoder with DistributedDataParallel, bf16 parameters.

torchrun --nproc-per-node 4 samples/llama_ddp.py --batch 4
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from llama import Llama, add_arguments, cross_entropy, random_batch, shape_of, train


def main() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser, dim=2048, layers=12, heads=16, kv_heads=8, ffn=8192, seq=2048, batch=4)
    parser.add_argument("--bucket-mb", type=int, default=25, help="size of a gradient bucket")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches per step")
    args = parser.parse_args()
    shape = shape_of(args)

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    torch.manual_seed(1234 + rank)

    with device:
        model = Llama(shape)
    model.init_weights()
    model.to(torch.bfloat16)
    ddp = DistributedDataParallel(model, device_ids=[device.index], bucket_cap_mb=args.bucket_mb)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step() -> torch.Tensor:
        for index in range(args.accumulate):
            tokens, labels = random_batch(shape, args.batch, device)
            ddp.require_backward_grad_sync = index == args.accumulate - 1
            loss = cross_entropy(ddp(tokens), labels) / args.accumulate
            loss.backward()
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    tokens_per_step = args.batch * args.accumulate * shape.seq * world
    train(step, shape, args.steps, args.warmup, tokens_per_step, world, rank == 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Trains the samples' Llama with tensor parallelism inside pairs of ranks and FSDP2 across the pairs.

torchrun --nproc-per-node 8 validation/one_host/two_dim.py --layers 16
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from llama import Llama, add_arguments, cross_entropy, random_batch, shape_of, train


def main() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser, layers=16)
    args = parser.parse_args()
    shape = shape_of(args)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(1234 + rank // 2)
    with torch.device("meta"):
        model = Llama(shape)
    plan = {name: ColwiseParallel() for name in ("attention.wq", "attention.wk", "attention.wv")}
    plan |= {name: ColwiseParallel() for name in ("feed_forward.w1", "feed_forward.w3")}
    rows = {name: RowwiseParallel() for name in ("attention.wo", "feed_forward.w2")}
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.layers:
        parallelize_module(block, mesh["tp"], {**plan, **rows})
        fully_shard(block, mesh=mesh["dp"], mp_policy=policy)
    fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
    model.to_empty(device=device)
    model.init_weights()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=False, foreach=False)

    def step() -> torch.Tensor:
        tokens, labels = random_batch(shape, args.batch, device)
        loss = cross_entropy(model(tokens), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    train(step, shape, args.steps, args.warmup, args.batch * shape.seq * world // 2, world, rank == 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Trains a Llama-style decoder with FSDP2 (fully_shard), bf16 parameters, fp32 reduction, clipping.

torchrun --nproc-per-node 4 samples/llama_fsdp2.py --layers 32
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from llama import Llama, add_arguments, cross_entropy, random_batch, shape_of, train


def main() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.add_argument("--ac", choices=["none", "full"], default="none", help="activation checkpointing")
    parser.add_argument("--no-reshard", action="store_true", help="keep parameters gathered after the forward pass")
    parser.add_argument("--replicate", type=int, default=1, help="copies of the model, each sharded (HSDP)")
    args = parser.parse_args()
    shape = shape_of(args)

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    if args.replicate > 1:
        sizes = args.replicate, world // args.replicate
        mesh = init_device_mesh("cuda", sizes, mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh("cuda", (world,), mesh_dim_names=("dp",))
    torch.manual_seed(1234 + rank)

    with torch.device("meta"):
        model = Llama(shape)
    if args.ac == "full":
        for index, block in enumerate(model.layers):
            model.layers[index] = checkpoint_wrapper(block)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.layers:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=not args.no_reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device=device)
    model.init_weights()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step() -> torch.Tensor:
        tokens, labels = random_batch(shape, args.batch, device)
        loss = cross_entropy(model(tokens), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    train(step, shape, args.steps, args.warmup, args.batch * shape.seq * world, world, rank == 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

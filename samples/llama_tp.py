"""Trains a Llama-style decoder with DTensor tensor parallelism and sequence parallelism.

torchrun --nproc-per-node 4 samples/llama_tp.py --sp
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from llama import Llama, add_arguments, cross_entropy, random_batch, shape_of, train


def main() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser, layers=16)
    parser.add_argument("--sp", action="store_true", help="shard norms and residuals along the sequence")
    args = parser.parse_args()
    shape = shape_of(args)

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (world,), mesh_dim_names=("tp",))
    torch.manual_seed(1234)  # the same batch on every rank

    with torch.device("meta"):
        model = Llama(shape)
    activations = Shard(1) if args.sp else Replicate()
    whole = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=activations),
        "output": ColwiseParallel(input_layouts=activations, output_layouts=Replicate()),
    }
    block = {
        "attention": PrepareModuleInput(
            input_layouts=(activations, None, None), desired_input_layouts=(Replicate(), None, None)
        ),
        "attention.wq": ColwiseParallel(),
        "attention.wk": ColwiseParallel(),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=activations),
        "feed_forward": PrepareModuleInput(input_layouts=(activations,), desired_input_layouts=(Replicate(),)),
        "feed_forward.w1": ColwiseParallel(),
        "feed_forward.w2": RowwiseParallel(output_layouts=activations),
        "feed_forward.w3": ColwiseParallel(),
    }
    if args.sp:
        whole["norm"] = SequenceParallel()
        block["attention_norm"] = SequenceParallel()
        block["ffn_norm"] = SequenceParallel()
    parallelize_module(model, mesh, whole)
    for layer in model.layers:
        parallelize_module(layer, mesh, block)
    model.to(torch.bfloat16)
    model.to_empty(device=device)
    model.init_weights()
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=True)

    def step() -> torch.Tensor:
        tokens, labels = random_batch(shape, args.batch, device)
        loss = cross_entropy(model(tokens), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    train(step, shape, args.steps, args.warmup, args.batch * shape.seq, world, rank == 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""DistributedDataParallel in the form of PyTorch's tutorial: the script starts one process per GPU itself.

phantora trace --cluster 1x4xH100 samples/spawn_ddp.py
python samples/spawn_ddp.py                                 # on real GPUs
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def worker(rank: int, world: int, args: argparse.Namespace) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world)
    width = args.width
    layers: list[nn.Module] = []
    for _ in range(args.layers):
        layers += [nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
    model = DistributedDataParallel(nn.Sequential(*layers).to(rank, torch.bfloat16), device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    times = []
    for _ in range(args.steps):
        begin = time.perf_counter()
        x = torch.randn(args.batch, width, device=rank, dtype=torch.bfloat16)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    if rank == 0:
        print(f"{world} GPUs, median step {statistics.median(times[1:]) * 1e3:.2f} ms", flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--port", type=int, default=29533)
    world = torch.cuda.device_count()
    mp.spawn(worker, args=(world, parser.parse_args()), nprocs=world)


if __name__ == "__main__":
    main()

"""Time of torch's operators on symmetric memory, in a group of one GPU or of several.

    python -m validation.probes.symmetric_memory                           # what a kernel takes alone
    torchrun --nproc-per-node 2 -m validation.probes.symmetric_memory [--out FILE]
    phantora trace --cluster 1x2xH100 -m validation.probes.symmetric_memory

Rank 0 prints the median of ROUNDS calls in us, by events around each call; signals, barriers and copies are called eight times
between two events. In a group of one there is nothing to copy from. `--kernels` writes a line [work, name, stream, start, duration]
for each kernel of rank 0 in one call of each, in ns.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm
from torch.profiler import ProfilerActivity, profile

from validation.gpu_work import work_of

ELEMENTS = (1 << 10, 1 << 16, 1 << 20, 1 << 22, 1 << 24)  # of bfloat16
ROUNDS = 20
TOKENS, WIDTH, HIDDEN = 8192, 6144, 12288
"""Sizes of the products: all ranks' tokens, and the part of a rank of two in a matrix of 24,576."""
REPEATED = 8


def works(world: int, rank: int, group: Any) -> dict[str, tuple[Callable[[], object], int]]:
    """Each with how often a call does it."""
    device = torch.device("cuda", rank)
    memory = symm.empty(max(ELEMENTS), dtype=torch.bfloat16, device=device)
    handle = symm.rendezvous(memory, group)
    peer = (rank + 1) % world

    def repeated(work: Callable[[], object]) -> tuple[Callable[[], object], int]:
        return lambda: [work() for _ in range(REPEATED)], REPEATED

    def signals() -> None:
        handle.put_signal(peer, channel=1)
        handle.wait_signal((rank - 1) % world, channel=1)

    found = {"barrier": repeated(lambda: handle.barrier(channel=0)), "signal and wait": repeated(signals)}
    for count in ELEMENTS:
        part = memory[:count]
        found[f"one_shot {count}"] = (partial(lambda part: torch.ops.symm_mem.one_shot_all_reduce(part, "sum", group), part)), 1
        found[f"two_shot {count}"] = (partial(lambda part: torch.ops.symm_mem.two_shot_all_reduce_(part, "sum", group), part)), 1
        if world > 1:
            there, here = handle.get_buffer(peer, (count,), torch.bfloat16), torch.empty_like(part)
            found[f"copy {count}"] = repeated(partial(lambda there, here: here.copy_(there), there, here))
    if world > 1:
        found.update(products(world, device, group))
    return found


def products(world: int, device: torch.device, group: Any) -> dict[str, tuple[Callable[[], object], int]]:
    """Products with a gather before or a scatter behind, apart and fused."""
    part = torch.randn(TOKENS // world, WIDTH, dtype=torch.bfloat16, device=device)
    up = torch.randn(WIDTH, HIDDEN, dtype=torch.bfloat16, device=device)
    down = torch.randn(HIDDEN, WIDTH, dtype=torch.bfloat16, device=device)
    wide = torch.randn(TOKENS, HIDDEN, dtype=torch.bfloat16, device=device)
    whole = torch.empty(TOKENS, WIDTH, dtype=torch.bfloat16, device=device)
    shared = symm.empty(part.numel(), dtype=torch.bfloat16, device=device).view_as(part).copy_(part)
    symm.rendezvous(shared, group)

    def apart_gather() -> torch.Tensor:
        dist.all_gather_into_tensor(whole, part)
        return whole @ up

    def apart_scatter() -> torch.Tensor:
        dist.reduce_scatter_tensor(part, wide @ down)
        return part

    def fused_gather() -> object:
        return torch.ops.symm_mem.fused_all_gather_matmul(shared, [up], gather_dim=0, group_name=group)

    def fused_scatter() -> object:
        return torch.ops.symm_mem.fused_matmul_reduce_scatter(wide, down, "sum", scatter_dim=0, group_name=group)

    def low_contention() -> torch.Tensor:
        return torch.ops._c10d_functional.wait_tensor(torch.ops.symm_mem._low_contention_all_gather(shared, group))

    return {
        "product up": (lambda: whole @ up, 1),
        "product down": (lambda: wide @ down, 1),
        "gather": (lambda: dist.all_gather_into_tensor(whole, part), 1),
        "gather, product": (apart_gather, 1),
        "fused gather, product": (fused_gather, 1),
        "product, scatter": (apart_scatter, 1),
        "fused product, scatter": (fused_scatter, 1),
        "low contention gather": (low_contention, 1),
    }


def write_kernels(tried: dict[str, Callable[[], object]], rank: int, path: Path) -> None:
    with gzip.open(path, "wt") if rank == 0 else nullcontext() as file:
        for name, work in tried.items():
            with profile(activities=[ProfilerActivity.CUDA]) as profiler:
                dist.barrier()
                torch.cuda._sleep(200_000)
                work()
                torch.cuda.synchronize()
            for event in work_of(profiler) if file else ():
                row = [name, event.name(), event.device_resource_id(), event.start_ns(), event.duration_ns()]
                print(json.dumps(row), file=file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--kernels", type=Path)
    args = parser.parse_args()
    alone = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "RANK": "0", "WORLD_SIZE": "1"}
    for name, value in alone.items():
        os.environ.setdefault(name, value)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    rows = []
    tried = works(world, rank, dist.distributed_c10d._get_default_group().group_name)
    for name, (work, count) in tried.items():
        times = []
        for _ in range(ROUNDS):
            dist.barrier()
            torch.cuda._sleep(200_000)  # the host is ahead of the GPU, as in a step
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            work()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1000 / count)
        rows.append({"work": name, "us": median(times[2:]), "ranks": world})
    if args.kernels:
        write_kernels({name: work for name, (work, _) in tried.items()}, rank, args.kernels)
    if rank == 0:
        print(torch.cuda.get_device_name(), torch.__version__)
        for row in rows:
            print(f"{row['work']:24} {row['us']:9.2f}")
        if args.out:
            args.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

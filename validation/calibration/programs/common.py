"""Timing shared by the programs: `program.py CONFIG... [--trace DIR] [--all-ranks] [--short]`.

Prints one line of JSON per configuration. `--short` takes fewer steps; simulated steps are equal.
"""
from __future__ import annotations

import gzip
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

Step = Callable[[], object]
WARM, STEPS, IN_A_ROW = (4, 3, 3) if "--short" in sys.argv else (5, 12, 10)


def setup() -> tuple[int, int]:
    """Joins the group of all ranks. Returns the rank and the number of ranks."""
    rank, world, local = (int(os.environ[k]) for k in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    torch.manual_seed(1234)
    return rank, world


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def timed(name: str, config: str, step: Step) -> None:
    for _ in range(WARM):
        step()
    torch.cuda.synchronize()
    times = []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        t0 = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - t0)
    t0 = time.perf_counter()
    for _ in range(IN_A_ROW):
        step()
    torch.cuda.synchronize()
    in_a_row = (time.perf_counter() - t0) / IN_A_ROW
    if rank() == 0:
        print(json.dumps({
            "name": name, "config": config, "median_iter_s": statistics.median(times), "times": [round(t, 6) for t in times],
            "in_a_row_s": in_a_row, "world_size": dist.get_world_size() if dist.is_initialized() else 1,
            "max_memory_allocated": torch.cuda.max_memory_allocated(), "max_memory_reserved": torch.cuda.max_memory_reserved(),
        }), flush=True)


def traced(path: str, step: Step, stacks: bool, kept: bool) -> None:
    from torch.profiler import ProfilerActivity, profile, schedule

    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], schedule=schedule(wait=1, warmup=2, active=2, repeat=1),
        record_shapes=True, with_stack=stacks,
    ) as prof:
        for _ in range(5):
            step()
            prof.step()
    if kept:
        prof.export_chrome_trace(path)
        with open(path, "rb") as plain, gzip.open(path + ".gz", "wb", compresslevel=6) as packed:
            shutil.copyfileobj(plain, packed)
        os.remove(path)


def main(name: str, build: Callable[..., Step], configs: Mapping[str, Mapping[str, Any]]) -> None:
    argv = sys.argv[1:]
    folder = argv[argv.index("--trace") + 1] if "--trace" in argv else None
    all_ranks = "--all-ranks" in argv
    for config in [arg for arg in argv if arg in configs]:
        torch.manual_seed(1234)
        step = build(**configs[config])
        timed(name, config, step)
        del step
        torch.cuda.empty_cache()
    if folder:  # last: CUPTI stays attached after a profile and slows what follows
        torch.manual_seed(1234)
        step = build(**configs["base"])
        timed(name, "base_again", step)
        for stacks in (False, True):
            kept = rank() == 0 or (all_ranks and not stacks)
            traced(f"{folder}/{name}.{'stack' if stacks else 'plain'}.rank{rank()}.json", step, stacks, kept)
        timed(name, "base_after", step)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()

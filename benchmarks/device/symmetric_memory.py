"""What torch's kernels on symmetric memory take in a group of one GPU: their beginning, their end and their signals.

    python benchmarks/device/symmetric_memory.py

Prints the median of each kernel's device time in us. What the way to a peer adds needs several GPUs.
"""

from __future__ import annotations

import os
from statistics import median

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm
from torch.profiler import ProfilerActivity, profile

ELEMENTS = (1 << 10, 1 << 16, 1 << 20, 1 << 22)  # of bfloat16
ROUNDS = 20


def main() -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("nccl")
    group = dist.group.WORLD.group_name
    memory = symm.empty(max(ELEMENTS), dtype=torch.bfloat16, device=torch.device("cuda", 0))
    handle = symm.rendezvous(memory, group)
    works = {
        "barrier": lambda: handle.barrier(channel=0),
        "put_signal": lambda: handle.put_signal(0, channel=1),
        "wait_signal": lambda: handle.wait_signal(0, channel=1),
        "sleep of 100 cycles": lambda: torch.cuda._sleep(100),
    }
    for count in ELEMENTS:
        part = memory[:count]
        works[f"one_shot {count}"] = lambda part=part: torch.ops.symm_mem.one_shot_all_reduce(part, "sum", group)
        works[f"two_shot {count}"] = lambda part=part: torch.ops.symm_mem.two_shot_all_reduce_(part, "sum", group)
    for work in works.values():
        work()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(ROUNDS):
            for work in works.values():
                work()
        torch.cuda.synchronize()
    kernels = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    print(torch.cuda.get_device_name(), torch.__version__)
    for number, name in enumerate(works):
        print(f"{name:20} {median(event.device_time for event in kernels[number :: len(works)]):6.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

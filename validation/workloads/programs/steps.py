"""Times the steps of a script in this folder and prints one JSON line: median step, each step, peak memory.

STEPS_PROFILE=FILE adds a line to FILE: the kernels of one more step, how many of each name and their ns.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable

import torch

WARM = 4


def timed(run_id: str, step: Callable[[], object], iterations: int = 12) -> None:
    """A single word on the command line replaces `iterations`: 0 compiles only."""
    iterations = int(sys.argv[-1]) if sys.argv[-1].isdigit() else iterations
    for _ in range(WARM if iterations else 2):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(iterations):
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    if not iterations:
        return
    print(
        json.dumps(
            {
                "run_id": run_id, "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
                "median_iter_s": statistics.median(times), "iter_times": [round(t, 6) for t in times],
                "max_memory_allocated": torch.cuda.max_memory_allocated(), "max_memory_reserved": torch.cuda.max_memory_reserved(),
            }
        ),
        flush=True,
    )  # fmt: skip
    if path := os.environ.get("STEPS_PROFILE"):
        profiled(run_id, step, path)


def profiled(run_id: str, step: Callable[[], object], path: str) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        step()
        torch.cuda.synchronize()
    kernels: dict[str, list[int]] = {}
    for event in found.profiler.kineto_results.events():
        if event.device_type() == torch.autograd.DeviceType.CUDA:
            count, ns = kernels.get(event.name()[:160], (0, 0))
            kernels[event.name()[:160]] = [count + 1, ns + event.duration_ns()]
    with open(path, "a") as file:
        print(json.dumps({"run_id": run_id, "kernels": kernels}), file=file)

"""Time between kernels that follow each other on a stream, on a real GPU. JSON lines.

    python -m validation.probes.gaps > gaps.jsonl

The host is far ahead: kernels are queued behind a long one. Reported for kernels of some lengths: ns per kernel by CUDA
events, without and with the profiler, and the profiler's durations, so that the gap is the difference; alone, and while
0 to 3 other streams, of usual or high priority, wait for an event of the busy one.
"""

from __future__ import annotations

import json
import statistics
from itertools import pairwise

import torch

from validation.gpu_work import work_of

COUNT = 400


def measure(size: int, others: int, priority: int, profiled: bool) -> tuple[float, list[float], list[float]]:
    """ns per kernel by events, durations and gaps by the profiler."""
    x = torch.zeros(size, device="cuda")
    streams = [torch.cuda.Stream(priority=priority) for _ in range(others)]
    a, b, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    activities = [torch.profiler.ProfilerActivity.CUDA] if profiled else []
    with torch.profiler.profile(activities=activities) as profiler:
        torch.cuda._sleep(int(2e7))
        a.record()
        for i in range(COUNT):
            x.add_(1.0)
            if i % 20 == 10:
                middle = torch.cuda.Event()
                middle.record()
                for stream in streams:  # as many waits as there are kernels between two of them
                    stream.wait_event(middle)
        b.record()
        end.record()
        for stream in streams:
            stream.wait_event(end)
            with torch.cuda.stream(stream):
                torch.zeros(8, device="cuda")
        torch.cuda.synchronize()
    each = a.elapsed_time(b) * 1e6 / COUNT
    if not profiled:
        return each, [], []
    events = sorted(
        (e.start_ns(), e.start_ns() + e.duration_ns())
        for e in work_of(profiler)
        if "CUDAFunctor" in e.name()
    )
    return each, [b - a for a, b in events], [y[0] - x[1] for x, y in pairwise(events)]


def main() -> None:
    for size in (1 << 12, 1 << 20, 1 << 24):
        for others, priority in ((0, 0), (1, 0), (1, -1), (2, 0), (2, -1), (3, 0), (3, -1)):
            measure(size, others, priority, False)
            plain = [measure(size, others, priority, False)[0] for _ in range(3)]
            each, durations, gaps = measure(size, others, priority, True)
            print(json.dumps({
                "bytes": 4 * size, "others": others, "priority": priority, "each_ns": statistics.median(plain),
                "profiled_each_ns": each, "kernel_ns": statistics.median(durations), "gap_ns": statistics.median(gaps),
            }), flush=True)


if __name__ == "__main__":
    main()

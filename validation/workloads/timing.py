"""Times of steps, and the row that a run writes of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch


def timed(step: Callable[[], object], warm: int, iters: int, before: Callable[[], object] = torch.cuda.synchronize) -> list[float]:
    """Seconds of `iters` steps after `warm` others. `before` each one the GPU must be idle; a step ends when it is again."""
    times = []
    for _ in range(warm + iters):
        before()
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return times[warm:]


def timed_afresh(step: Callable[[], object], warm: int, iters: int) -> list[float]:
    """Seconds of `iters` steps after `warm` others, whose peaks of memory do not count."""
    for _ in range(warm):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    return timed(step, 0, iters)


def row_of(run_id: str, times: Sequence[float], **more: Any) -> dict[str, Any]:
    """A run's row: seconds of its steps and their median, peaks of memory in bytes, torch and GPU."""
    return {
        "run_id": run_id, "iter_times": list(times), "median_iter_s": statistics.median(times) if times else 0.0,
        "max_memory_allocated": torch.cuda.max_memory_allocated(), "max_memory_reserved": torch.cuda.max_memory_reserved(),
        "torch": torch.__version__, "gpu": torch.cuda.get_device_name(), **more,
    }

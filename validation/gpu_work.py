"""Work of a real GPU as torch's profiler (CUPTI) saw it. Needs a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def work_of(seen: Any) -> list[Any]:
    """Kernels, copies and memsets of a profile: events with `name()`, `start_ns()`, `duration_ns()`."""
    events = seen.profiler.kineto_results.events()
    return [event for event in events if event.device_type() == torch.autograd.DeviceType.CUDA]


def profiled(call: Callable[[], object]) -> list[Any]:
    """The work of `call`, which is complete when this returns."""
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        call()
        torch.cuda.synchronize()
    return work_of(seen)


def by_name(call: Callable[[], object], letters: int = 200) -> dict[str, list[int]]:
    """Number of each kernel that `call` launches, by the first `letters` of its name, and their ns together."""
    kernels: dict[str, list[int]] = {}
    for event in profiled(call):
        count, ns = kernels.get(event.name()[:letters], (0, 0))
        kernels[event.name()[:letters]] = [count + 1, ns + event.duration_ns()]
    return kernels

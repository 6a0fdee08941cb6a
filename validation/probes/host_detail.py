"""Parts of the steps of host_runs.py: times, CPU times, the host's speed between steps, operators. JSON lines.

    python -m validation.probes.host_detail OUT.jsonl [WORKLOAD ...]             # a process forked for each workload
    phantora trace --null -m validation.probes.host_detail OUT.jsonl WORKLOAD    # the same host work without CUDA calls
    phantora trace -m validation.probes.host_detail OUT.jsonl WORKLOAD           # what the simulated host is charged for

A workload may be named with another that is built before it in the same process: `deepspeed_three+gpt`.

A row contains steps one after the other, then steps with a short probe before each (Python, and PyTorch on the CPU: how
fast the host is at that moment, since hosts of shared machines change their speed within seconds), then, on a real GPU,
two steps under torch's profiler: CPU time and calls of every operator and CUDA call, time of the kernels.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from validation.charges import SIMULATED, counts, since
from validation.probes.host_pairs import KNOWN
from validation.workloads.host_runs import WARM, WORKLOADS, Step

PLAIN, PROBED, PROFILED = 16, 16, 2
LIMIT_S = 75
SHARED = ("torchvision.models", "transformers", "torch.distributed.fsdp", "torch.distributed.tensor.parallel")


def python() -> None:
    """About half a millisecond of calls, attributes, dicts and strings."""
    names = {str(i): i for i in range(400)}
    total = 0
    for name, value in names.items():
        total += len(name) + max(value, 3) if isinstance(value, int) else 0
    assert total


SMALL = torch.ones(8, 8)


def operators() -> None:
    """About half a millisecond in the dispatcher and the CPU's allocator."""
    for _ in range(40):
        SMALL.view(-1)
        torch.empty(8)
        SMALL.add(1.0)


def spent(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def profiled(step: Step) -> dict[str, Any]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        for _ in range(PROFILED):
            step()
        torch.cuda.synchronize()
    rows, kernels = {}, 0.0
    for row in seen.key_averages():
        kernels += row.self_device_time_total
        if row.self_cpu_time_total > 0:
            rows[row.key] = [row.count / PROFILED, round(row.self_cpu_time_total / PROFILED, 2), round(row.self_device_time_total / PROFILED, 2)]
    return {"kernels_us": round(kernels / PROFILED, 1), "operators": rows}


def run(which: str) -> dict[str, Any]:
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(0)
    *before, which = which.split("+")
    for other in before:
        KNOWN[other]()
    step = KNOWN[which]()
    times, worked, probed, speed = [], [], [], []

    def once() -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    for turn in range(WARM + PLAIN):
        cpu = time.process_time()
        took = once()
        if turn >= WARM:
            times.append(took)
            worked.append(time.process_time() - cpu)
    for _ in range(PROBED):
        speed.append((spent(python), spent(operators)))
        probed.append(once())
    row: dict[str, Any] = {
        "run_id": f"host_{which}", "name": "host_detail", "iter_times": times, "median_iter_s": statistics.median(times),
        "cpu_times": worked, "probed_times": probed, "probes": speed, "torch": torch.__version__, "gpu": torch.cuda.get_device_name(),
    }
    if SIMULATED:
        then = counts()
        once()
        row |= since(then)
    else:
        row |= profiled(step)
    if dist.is_initialized():
        dist.destroy_process_group()
    return row


def write(path: str, which: str) -> None:
    row = run(which)
    with open(path, "a", encoding="utf-8") as file:
        print(json.dumps(row), file=file)


def forked(path: str, which: str) -> None:
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT_S)
        try:
            write(path, which)
        except BaseException as error:  # the other workloads go on
            print(f"{which}: {type(error).__name__}: {error}", flush=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(f"{which}: status {status}, {time.monotonic() - begin:.1f} s", flush=True)


def main() -> None:
    path, names = sys.argv[1], sys.argv[2:]
    if names and (len(names) == 1 or SIMULATED):
        for name in names:
            write(path, name)
        return
    for module in SHARED:  # once, not by each child
        with contextlib.suppress(ImportError):
            __import__(module)
    for name in names or WORKLOADS:
        forked(path, name)


if __name__ == "__main__":
    main()

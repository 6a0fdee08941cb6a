"""Rates of a host's memory when several processes with several threads use it: python -m validation.probes.host_ranks OUT.

One JSON line for each operator, number of processes and number of threads (0: torch's own number), with the seconds
per GiB moved of each process. Plain torch; DeepSpeed's Adam on the CPU too, where DeepSpeed can compile it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

import torch

GIB = 1 << 30
ELEMENTS = 64 << 20
ROUNDS = 6
Work = Callable[[], object]


def operators(rank: int) -> dict[str, tuple[Work, int]]:
    """What is timed, by name, with the bytes that it moves."""
    x, y = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)
    half = torch.zeros(ELEMENTS, dtype=torch.bfloat16)
    found: dict[str, tuple[Work, int]] = {
        "copy_": (lambda: y.copy_(x), 8 * ELEMENTS),
        "mul_": (lambda: x.mul_(1.0), 8 * ELEMENTS),
        "to bf16": (lambda: half.copy_(x), 6 * ELEMENTS),
        "new": (lambda: x + 1.0, 8 * ELEMENTS),
        "norm": (lambda: x.norm(), 4 * ELEMENTS),
    }
    parameter = torch.zeros(ELEMENTS, requires_grad=True)
    parameter.grad = torch.ones(ELEMENTS)
    found["adamw foreach"] = (torch.optim.AdamW([parameter], foreach=True).step, 28 * ELEMENTS)
    found["adamw fused"] = (torch.optim.AdamW([parameter], fused=True).step, 28 * ELEMENTS)
    if torch.cuda.is_available():
        there = torch.zeros(ELEMENTS, dtype=torch.bfloat16, device=f"cuda:{rank}")
        pinned = torch.zeros(ELEMENTS, pin_memory=True)

        def cast() -> None:
            there.copy_(pinned)
            torch.cuda.synchronize(rank)

        def pageable() -> None:
            there.copy_(half)
            torch.cuda.synchronize(rank)

        found["fp32 pinned to bf16 there"] = (cast, 6 * ELEMENTS)
        found["pageable to there"] = (pageable, 2 * ELEMENTS)
    try:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        own = torch.zeros(ELEMENTS, requires_grad=True)
        own.grad = torch.ones(ELEMENTS)
        found["DeepSpeedCPUAdam"] = (DeepSpeedCPUAdam([own]).step, 28 * ELEMENTS)
    except Exception as error:
        print("no DeepSpeedCPUAdam:", str(error).splitlines()[-1][:200], file=sys.stderr)
    return found


def process(rank: int, threads: int, gate: Any, results: Any) -> None:
    if threads:
        torch.set_num_threads(threads)
    for name, (work, size) in operators(rank).items():
        work()
        gate.wait()
        began = time.perf_counter()
        for _ in range(ROUNDS):
            work()
        spent = time.perf_counter() - began
        gate.wait()
        results.put((name, rank, spent / ROUNDS * GIB / size))


def main() -> None:
    context = get_context("spawn")
    cpus, gpus = os.cpu_count() or 1, torch.cuda.device_count()
    for processes in (1, 2)[: max(gpus, 1)]:
        for threads in (1, 4, 8, 16, 0):
            gate, results = context.Barrier(processes), context.Queue()
            ranks = [context.Process(target=process, args=(r, threads, gate, results)) for r in range(processes)]
            for rank in ranks:
                rank.start()
            found: dict[str, list[float]] = {}
            while any(rank.is_alive() for rank in ranks) or not results.empty():
                try:
                    name, _, seconds = results.get(timeout=0.5)
                except Exception:
                    continue
                found.setdefault(name, []).append(round(seconds, 5))
            with open(sys.argv[1], "a") as rows:
                for name, every in found.items():
                    row = {"name": name, "processes": processes, "threads": threads, "s_per_gib": every}
                    print(json.dumps({**row, "vcpus": cpus, "gpus": gpus}), file=rows)


if __name__ == "__main__":
    main()

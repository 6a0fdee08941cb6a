"""Host-bound workloads of host_runs.py in turns, in one process, so that all of them meet the same host. JSON lines.

    python benchmarks/device/host_rounds.py OUT.jsonl [ROUNDS]                       # real
    phantora trace --null benchmarks/device/host_rounds.py OUT.jsonl [ROUNDS]        # the same without CUDA calls

The host of a shared machine changes its speed within seconds by up to two times, so runs one after the other differ more
by that than by what they do. Here every round takes each workload twice (the second counts) and rows of the probe that
call no CUDA, whose times tell the host's speed in that round.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn as nn
from host_runs import WORKLOADS, Step

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # where phantora is not installed
from phantora.profile.host_probe import python

LEFT_OUT = ("retries", "decode")  # memory for itself; half a second a step


def probe_rows() -> dict[str, tuple[Callable[[], object], int]]:
    """As in phantora/profile/host_probe.py: what to call and how often."""
    x = torch.randn(64, 64, device="cuda")
    nothing = nn.Identity()
    w = torch.randn(64, 64, device="cuda", requires_grad=True)

    def views() -> None:
        y = w
        for _ in range(20):
            y = y.view(64, 64)

    return {
        "python": (python, 30), "nn.Identity": (lambda: nothing(x), 300), "view": (lambda: x.view(-1), 300),
        "slice": (lambda: x[:, 1:], 150), "split": (lambda: x.split(16), 100), "20x view": (views, 10),
    }  # fmt: skip


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(0)
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 24
    steps: dict[str, Step] = {}
    for name, build in WORKLOADS.items():
        if name in LEFT_OUT:
            continue
        steps[name] = build()
    rows = probe_rows()
    times: dict[str, list[float]] = {name: [] for name in (*steps, *rows)}
    worked: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(-3, rounds):
        for name, step in steps.items():
            step()
            torch.cuda.synchronize()
            cpu, begin = time.process_time(), time.perf_counter()
            step()
            torch.cuda.synchronize()
            if turn >= 0:
                times[name].append(time.perf_counter() - begin)
                worked[name].append(time.process_time() - cpu)
        for name, (call, count) in rows.items():
            call()
            begin = time.perf_counter()
            for _ in range(count):
                call()
            if turn >= 0:
                times[name].append((time.perf_counter() - begin) / count)
    with open(sys.argv[1], "a", encoding="utf-8") as file:
        for name, found in times.items():
            ordered = sorted(found)
            row = {"run_id": f"host_{name}", "name": "host_rounds", "iter_times": found, "median_iter_s": ordered[len(ordered) // 2]}
            print(json.dumps(row | ({"cpu_times": worked[name]} if name in worked else {"probe": True})), file=file)


if __name__ == "__main__":
    main()

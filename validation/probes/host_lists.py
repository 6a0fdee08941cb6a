"""Host time of operators on lists of tensors, by the number of tensors, and device memory of CUDA graphs. JSON lines.

    python -m validation.probes.host_lists --out FILE.jsonl

`clip` rows: `clip_grad_norm_`, one by one and by lists; `list` rows: one operator on a list, in a loop, and `cold`, after work
that uses the caches; `graph` rows: bytes of the GPU that capture, instantiation and the first launch take, by number of kernels.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

COUNTS = (10, 30, 100, 300, 1000, 3000)
KERNELS = (1, 10, 100, 1000, 5000)


def us(call: Callable[[], object], before: Callable[[], object] = lambda: None, rounds: int = 11) -> float:
    """Median host time of a call in us, the GPU idle before it."""
    times = []
    for _ in range(rounds):
        before()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    torch.cuda.synchronize()
    return statistics.median(times) * 1e6


NET = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)) for _ in range(60)))


def busy() -> None:
    """Forward and backward of small layers on the CPU: code and data that displace others from the caches."""
    NET(torch.ones(2, 8)).sum().backward()


def with_grad() -> None:
    with torch.enable_grad():
        busy()


def lists() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for n in COUNTS:
        params = [torch.nn.Parameter(torch.zeros(256, device="cuda")) for _ in range(n)]
        for p in params:
            p.grad = torch.ones_like(p)
        grads = [p.grad for p in params if p.grad is not None]
        norms = torch._foreach_norm(grads)
        calls: dict[str, Callable[[], object]] = {
            "norm": lambda grads=grads: torch._foreach_norm(grads),  # type: ignore[misc]
            "mul_": lambda grads=grads: torch._foreach_mul_(grads, 1.0),  # type: ignore[misc]
            "add": lambda grads=grads: torch._foreach_add(grads, grads),  # type: ignore[misc]
            "stack": lambda norms=norms: torch.stack(norms),  # type: ignore[misc]
        }
        with torch.no_grad():
            for name, call in calls.items():
                rows.append({"row": "list", "name": name, "tensors": n, "us": us(call), "cold_us": us(call, with_grad)})
        for foreach in (False, True):

            def clip(params: list[torch.nn.Parameter] = params, foreach: bool = foreach) -> None:
                torch.nn.utils.clip_grad_norm_(params, 1.0, foreach=foreach)
                torch.cuda.synchronize()

            with torch.enable_grad():
                rows.append(
                    {"row": "clip", "foreach": foreach, "tensors": n, "us": us(clip), "cold_us": us(clip, busy)}
                )
    return rows


def graphs() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    x = torch.zeros(64, device="cuda")
    kept = []
    for n in KERNELS:
        torch.cuda.synchronize()
        free = [torch.cuda.mem_get_info()[0]]
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph):
            for _ in range(n):
                x.add_(1.0)
        free.append(torch.cuda.mem_get_info()[0])
        graph.instantiate()
        free.append(torch.cuda.mem_get_info()[0])
        graph.replay()
        torch.cuda.synchronize()
        free.append(torch.cuda.mem_get_info()[0])
        kept.append(graph)
        rows.append(
            {
                "row": "graph",
                "kernels": n,
                "captured": free[0] - free[1],
                "instantiated": free[1] - free[2],
                "launched": free[2] - free[3],
                "reserved": torch.cuda.memory_reserved(),
            }
        )
    before = torch.cuda.mem_get_info()[0]
    del kept, graph
    torch.cuda.synchronize()
    rows.append({"row": "graphs freed", "bytes": torch.cuda.mem_get_info()[0] - before})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with open(options.out, "w", buffering=1) as out:
        for part in (lists, graphs):
            for row in part():
                print(json.dumps(row), file=out)


if __name__ == "__main__":
    main()

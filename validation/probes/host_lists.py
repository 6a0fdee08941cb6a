"""Host time of operators on lists of tensors and of loops over them, and device memory of CUDA graphs. JSON lines.

    python -m validation.probes.host_lists --out FILE.jsonl

`list` rows: one operator on a list; `loop` rows: an operator on each tensor; `clip` rows: `clip_grad_norm_`, by lists and one by
one; `step` rows: a step of an optimizer. Each is timed in a loop (`us`), after a walk through other tensors (`walked_us`), and
after a training step of another network (`trained_us`); the GPU is idle before each. `graph` rows: bytes of the GPU that capture,
instantiation and the first launch take, by number of kernels.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.utils import clip_grad_norm_ as clip

COUNTS = (10, 30, 100, 300, 1000, 2000)
KERNELS = (1, 10, 100, 1000, 5000)
Call = Callable[[], object]


def us(call: Call, before: Call = lambda: None, rounds: int = 11) -> float:
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


class Between:
    """Other work of a program, which displaces lists and code from the caches."""

    def __init__(self) -> None:
        blocks = (torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)) for _ in range(60))
        self.net = torch.nn.Sequential(*blocks).cuda()
        self.input = torch.ones(2, 8, device="cuda")
        self.others = [torch.zeros(256, device="cuda") for _ in range(3000)]

    def train(self) -> None:
        """Forward and backward."""
        with torch.enable_grad():
            self.net(self.input).sum().backward()

    def walk(self) -> None:
        """An operator on a list of other tensors."""
        with torch.no_grad():
            torch._foreach_mul_(self.others, 1.0)


def lists() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    between = Between()

    def add(row: str, name: str, n: int, call: Call) -> None:
        found = {"us": us(call), "walked_us": us(call, between.walk), "trained_us": us(call, between.train)}
        rows.append({"row": row, "name": name, "tensors": n, **found})

    for n in COUNTS:
        params = [torch.nn.Parameter(torch.zeros(256, device="cuda")) for _ in range(n)]
        for p in params:
            p.grad = torch.ones_like(p)
        grads = [p.grad for p in params if p.grad is not None]
        norms = torch._foreach_norm(grads)
        with torch.no_grad():
            add("list", "norm", n, lambda grads=grads: torch._foreach_norm(grads))  # type: ignore[misc]
            add("list", "mul_", n, lambda grads=grads: torch._foreach_mul_(grads, 1.0))  # type: ignore[misc]
            add("list", "add", n, lambda grads=grads: torch._foreach_add(grads, grads))  # type: ignore[misc]
            add("list", "addcmul_", n, lambda grads=grads: torch._foreach_addcmul_(grads, grads, grads, 1.0))  # type: ignore[misc]
            add("list", "stack", n, lambda norms=norms: torch.stack(norms))  # type: ignore[misc]
            add("loop", "mul_", n, lambda grads=grads: [g.mul_(1.0) for g in grads])  # type: ignore[misc]
            add("loop", "vector_norm", n, lambda grads=grads: [torch.linalg.vector_norm(g) for g in grads])  # type: ignore[misc]
        for foreach in (False, True):
            how = "lists" if foreach else "one by one"
            add("clip", how, n, lambda params=params, foreach=foreach: clip(params, 1.0, foreach=foreach))  # type: ignore[misc]
            adam = torch.optim.AdamW(params, lr=1e-4, foreach=foreach)
            add("step", f"AdamW {how}", n, adam.step)
            sgd = torch.optim.SGD(params, lr=1e-4, foreach=foreach)
            add("step", f"SGD {how}", n, sgd.step)
            add("step", f"zero_grad {how}", n, lambda sgd=sgd: sgd.zero_grad(set_to_none=False))  # type: ignore[misc]
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
    parser.add_argument("--parts", nargs="+", choices=("lists", "graphs"), default=["lists", "graphs"])
    options = parser.parse_args()
    parts = {"lists": lists, "graphs": graphs}
    with open(options.out, "w", buffering=1) as out:
        for name in options.parts:
            for row in parts[name]():
                print(json.dumps(row), file=out)


if __name__ == "__main__":
    main()

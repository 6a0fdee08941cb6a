"""Times operators that make tensors on a real GPU: permutations, ranges, triangles of indices, drawn samples. JSON lines.

    python -m validation.probes.factories > "$OUT/factories.jsonl"

Each line has a name, the ns of a call and of each of its kernels (how many a call, ns a call), by torch.profiler over ten
calls. Under half a minute. For the constants of phantora/cost/families/random_numbers.py and fill.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial

import torch

from validation.gpu_work import by_name

CALLS = 10


def cases() -> Iterator[tuple[str, Callable[[], object]]]:
    """Names and calls."""
    for n in (1000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000):
        yield f"randperm {n}", partial(lambda n: torch.randperm(n, device="cuda"), n)
    for n in (500, 1000, 2000, 5000):
        yield f"tril_indices {n}", partial(lambda n: torch.tril_indices(n, n, device="cuda"), n)
        yield f"triu_indices {n}", partial(lambda n: torch.triu_indices(n, n, device="cuda"), n)
    for n in (10_000, 1_000_000, 30_000_000):
        yield f"linspace {n}", partial(lambda n: torch.linspace(0, 1, n, device="cuda"), n)
        yield f"logspace {n}", partial(lambda n: torch.logspace(0, 1, n, device="cuda"), n)
    for rows, columns in ((1, 10_000), (1, 1_000_000), (32, 50_257), (4096, 512)):
        x = torch.rand(rows, columns, device="cuda")
        yield f"multinomial {rows}x{columns}", partial(lambda x: torch.multinomial(x, 100, True), x)


def measure(call: Callable[[], object]) -> dict[str, tuple[float, float]]:
    """Number of each kernel that a call launches, and their ns."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()

    def calls() -> None:
        for _ in range(CALLS):
            call()

    return {name: (count / CALLS, ns / CALLS) for name, (count, ns) in by_name(calls, 90).items()}


for name, call in cases():
    kernels = measure(call)
    print(json.dumps({"name": name, "ns": sum(ns for _, ns in kernels.values()), "kernels": kernels}), flush=True)

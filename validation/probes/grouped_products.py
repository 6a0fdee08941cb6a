"""Grouped products on a real GPU: groups of equal and of unequal sizes, in bfloat16 and in FP8 with a scale a row. JSON lines.

    python -m validation.probes.grouped_products --out FILE.jsonl [--seconds N] [--seed N]

A row has the extents, the ends of the groups, the ns of a call in a loop of the same (median of 5 loops), and which operand the
groups cut: rows of the first (`rows`: forward), or the inner dimension (`inner`: gradients of the weights).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

LOOPS, CALLS = 5, 8
MOST = 1 << 30  # elements of the second operand


def ns_of(call: Callable[[], object]) -> float:
    """ns of a call in a loop."""
    for _ in range(2):
        call()
    times = []
    for _ in range(LOOPS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(CALLS):
            call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e6 / CALLS)
    return statistics.median(times)


def ends_of(r: random.Random, total: int, groups: int, how: str) -> list[int]:
    """Ends of the groups, multiples of 16 rows."""
    units = total // 16
    if how == "even":
        return [units * (i + 1) // groups * 16 for i in range(groups)]
    if how == "any":
        return [n * 16 for n in sorted(r.randint(0, units) for _ in range(groups - 1))] + [total]
    weights = [r.lognormvariate(0.0, 0.8) for _ in range(groups)]
    sums = [sum(weights[: i + 1]) / sum(weights) for i in range(groups)]
    return [int(units * s) * 16 for s in sums[:-1]] + [total]


def measure(r: random.Random) -> dict[str, object] | None:
    groups = r.choice((2, 4, 8, 8, 16, 16, 32, 64, 128))
    rows = r.choice((512, 1024, 2048, 4096, 8192, 8192, 16384, 32768, 65536))
    k, n = (r.choice((512, 768, 1024, 1408, 2048, 2880, 4096, 5120, 7168, 8192)) for _ in range(2))
    how, form = r.choice(("even", "uneven", "any")), r.choice(("rows", "rows", "inner"))
    if groups * k * n > MOST or rows * max(k, n) > MOST or rows < 16 * groups:
        return None
    ends = ends_of(r, rows, groups, how)
    offs = torch.tensor(ends, device="cuda", dtype=torch.int32)
    found: dict[str, object] = {"form": form, "rows": rows, "k": k, "n": n, "groups": groups, "how": how, "ends": ends}
    if form == "inner":
        a, b = torch.randn(rows, k, device="cuda").bfloat16(), torch.randn(rows, n, device="cuda").bfloat16()
        found["bfloat16_ns"] = ns_of(lambda: torch._grouped_mm(a.t(), b, offs=offs))
        return found
    a, b = (
        torch.randn(rows, k, device="cuda").bfloat16(),
        torch.randn(groups, n, k, device="cuda", dtype=torch.bfloat16),
    )
    found["bfloat16_ns"] = ns_of(lambda: torch._grouped_mm(a, b.transpose(-2, -1), offs=offs))
    a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    by_row, by_column = torch.ones(rows, device="cuda"), torch.ones(groups, n, device="cuda")
    for fast in (True, False):
        found[f"float8_ns_{'fast' if fast else 'exact'}"] = ns_of(
            lambda fast=fast: torch._scaled_grouped_mm(  # type: ignore[misc]
                a8, b8.transpose(-2, -1), by_row, by_column, offs=offs, out_dtype=torch.bfloat16, use_fast_accum=fast
            )
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    r, until = random.Random(options.seed), time.time() + options.seconds
    with open(options.out, "w", buffering=1) as out:
        while time.time() < until:
            row = measure(r)
            if row:
                print(json.dumps(row), file=out)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

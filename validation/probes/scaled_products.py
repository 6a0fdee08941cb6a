"""torch's FP8 products with and without fast accumulation, with one scale a tensor and with one a row. JSON lines.

    python -m validation.probes.scaled_products OUT.jsonl

Bursts of calls behind pauses, all ways of one size in turns, on random operands; bfloat16 next to them.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
from collections.abc import Callable

import torch

from validation.probes.fewer_sms import burst

ROUNDS, DRAWS = 7, 24
KINDS = ("bf16", "tensor fast", "tensor", "row fast", "row")


def sizes() -> list[tuple[int, int, int]]:
    """m, n, k of layers of language models, and drawn ones."""
    draw = random.Random(5)
    found = [
        (8192, 4096, 4096), (4096, 14336, 4096), (4096, 4096, 14336), (14336, 4096, 4096), (8192, 10240, 8192), (4096, 28672, 8192),
        (4096, 8192, 28672), (28672, 8192, 4096), (4096, 5120, 5120), (4096, 1280, 5120), (2048, 14336, 5120), (16384, 2048, 2048),
    ]
    extents = (1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 8192, 11008, 12288, 16384)
    return found + [(draw.choice(extents), draw.choice(extents), draw.choice(extents)) for _ in range(DRAWS)]


def ways(m: int, n: int, k: int) -> dict[str, Callable[[], torch.Tensor]]:
    x, w = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
    x8, w8 = x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn).t()
    one = torch.ones((), device="cuda")
    rows, columns = torch.ones(m, 1, device="cuda"), torch.ones(1, n, device="cuda")

    def scaled(a: torch.Tensor, b: torch.Tensor, fast: bool) -> Callable[[], torch.Tensor]:
        return lambda: torch._scaled_mm(x8, w8, scale_a=a, scale_b=b, out_dtype=torch.bfloat16, use_fast_accum=fast)

    return {
        "bf16": lambda: x @ w.t(), "tensor fast": scaled(one, one, True), "tensor": scaled(one, one, False),
        "row fast": scaled(rows, columns, True), "row": scaled(rows, columns, False),
    }


def main() -> None:
    with open(sys.argv[1], "a", encoding="utf-8") as file:
        for m, n, k in sizes():
            calls = ways(m, n, k)
            times: dict[str, list[float]] = {kind: [] for kind in KINDS}
            for turn in range(ROUNDS + 1):
                for kind in KINDS:
                    us = burst(calls[kind])
                    if turn:
                        times[kind].append(us)
            row = {"m": m, "n": n, "k": k, "us": {kind: statistics.median(found) for kind, found in times.items()}}
            print(json.dumps(row), file=file, flush=True)


if __name__ == "__main__":
    main()

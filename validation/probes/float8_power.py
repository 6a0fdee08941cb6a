"""Power of products in FP8 next to those in bfloat16: bursts at the burst limit, and hot at the cap. JSON lines.

    python -m validation.probes.float8_power OUT.jsonl

Operands of zeros draw little, so that their bursts run at the full clock. nvidia-smi tells clock and power while a
product runs in a row; its second half counts.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch

from validation.probes.fewer_sms import burst

SIZES = [(8192, 8192, 8192), (8192, 4096, 14336), (16384, 8192, 4096), (4096, 28672, 8192)]
HOT_S = 1.6
ROUNDS = 5
QUERY = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw.instant", "--format=csv,noheader,nounits", "-lms", "40"]


def ways(m: int, n: int, k: int, zeros: bool) -> dict[str, Callable[[], torch.Tensor]]:
    fill = torch.zeros if zeros else torch.randn
    x, w = (fill(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
    x4, x5, w4 = x.to(torch.float8_e4m3fn), x.to(torch.float8_e5m2), w.to(torch.float8_e4m3fn).t()
    one = torch.ones((), device="cuda")

    def scaled(a: torch.Tensor, fast: bool) -> Callable[[], torch.Tensor]:
        return lambda: torch._scaled_mm(a, w4, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast)

    return {"bf16": lambda: x @ w.t(), "e4m3 fast": scaled(x4, True), "e4m3": scaled(x4, False), "e5m2": scaled(x5, False)}


def hot(call: Callable[[], torch.Tensor], us: float) -> tuple[float, float, float]:
    """us of a call in a row, MHz and W meanwhile."""
    count = max(30, int(HOT_S * 1e6 / us))
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    smi = subprocess.Popen(QUERY, stdout=subprocess.PIPE, text=True)
    for i in range(count):
        if i == count // 2:
            start.record()
        call()
    end.record()
    torch.cuda.synchronize()
    smi.terminate()
    rows = [tuple(map(float, line.split(","))) for line in smi.communicate()[0].splitlines() if line.count(",") == 1]
    rows = [row for row in rows if row[1] > 300][len(rows) // 2 :] or rows
    clock, watts = (statistics.median(column) for column in zip(*rows, strict=True))
    return start.elapsed_time(end) * 1e3 / (count - count // 2), clock, watts


def main() -> None:
    with open(sys.argv[1], "a", encoding="utf-8") as file:
        print(json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}), file=file)
        for m, n, k in SIZES:
            for zeros in (False, True):
                for name, call in ways(m, n, k, zeros).items():
                    us = statistics.median(burst(call) for _ in range(ROUNDS))
                    time.sleep(0.3)
                    hot_us, clock, watts = hot(call, us)
                    row = {"m": m, "n": n, "k": k, "way": name, "zeros": zeros, "burst_us": us, "hot_us": hot_us, "mhz": clock, "watts": watts}
                    print(json.dumps(row), file=file, flush=True)
                    time.sleep(0.5)


if __name__ == "__main__":
    main()

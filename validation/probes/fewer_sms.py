"""Products on all SMs of a GPU and on fewer, as next to communication that keeps some. JSON lines.

    python -m validation.probes.fewer_sms OUT.jsonl

cuBLASLt is told how many SMs to leave (torch's experimental carve-out). Each product runs in bursts after pauses, at
the clock that tables describe, and in a row for a second, when the GPU is warm; all counts of SMs in turns.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch

LEFT = (0, 4, 16, 32)  # SMs that are left to others; Transformer Engine leaves 16
ROUNDS = 7
BURST = 5  # calls
HOT_S = 1.0
# m, n, k of y[m, n] = x[m, k] w[k, n], and which operands are transposed.
SIZES = [
    (8192, 6144, 12288, "nn"), (8192, 12288, 6144, "nt"), (8192, 9216, 6144, "nt"), (8192, 6144, 9216, "nn"),
    (8192, 4096, 4096, "nt"), (8192, 14336, 4096, "nt"), (8192, 4096, 14336, "nt"), (8192, 4096, 14336, "nn"),
    (4096, 4096, 8192, "tn"), (14336, 4096, 8192, "tn"), (4096, 8192, 28672, "nt"), (8192, 8192, 8192, "nt"),
    (2048, 4096, 4096, "nt"), (4096, 5120, 1280, "nt"),
]


def product(m: int, n: int, k: int, how: str, fp8: bool) -> Callable[[], torch.Tensor]:
    """The call, on random operands."""
    a = torch.randn((m, k) if how[0] == "n" else (k, m), device="cuda", dtype=torch.bfloat16)
    b = torch.randn((k, n) if how[1] == "n" else (n, k), device="cuda", dtype=torch.bfloat16)
    x, y = (a if how[0] == "n" else a.t()), (b if how[1] == "n" else b.t())
    if not fp8:
        return lambda: torch.mm(x, y)
    one = torch.ones((), device="cuda")
    narrow_x = x.contiguous().to(torch.float8_e4m3fn)  # Hopper multiplies FP8 in this layout alone
    narrow_y = y.t().contiguous().to(torch.float8_e4m3fn).t()
    return lambda: torch._scaled_mm(narrow_x, narrow_y, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def burst(call: Callable[[], torch.Tensor]) -> float:
    """us of a call, the mean of a burst behind a pause."""
    torch.cuda.synchronize()
    time.sleep(0.03)
    call()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(BURST):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3 / BURST


def hot(call: Callable[[], torch.Tensor], us: float) -> float:
    """us of a call, in a row for a second; its last third counts."""
    count = max(30, int(HOT_S * 1e6 / us))
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    last = count // 3
    for i in range(count):
        if i == count - last:
            start.record()
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3 / last


def main() -> None:
    torch.backends.cuda.preferred_blas_library("cublaslt")
    with open(sys.argv[1], "a", encoding="utf-8") as file:
        about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cublas": str(torch.backends.cuda.preferred_blas_library()).rpartition(".")[2]}
        print(json.dumps(about), file=file)
        for fp8 in (False, True):
            for m, n, k, how in SIZES:
                call = product(m, n, k, how, fp8)
                bursts: dict[int, list[float]] = {left: [] for left in LEFT}
                warm: dict[int, float] = {}
                for turn in range(ROUNDS + 1):
                    for left in LEFT:
                        torch._C._set_sm_carveout_experimental(left or None)
                        us = burst(call)
                        if turn:
                            bursts[left].append(us)
                for left in LEFT:
                    torch._C._set_sm_carveout_experimental(left or None)
                    warm[left] = hot(call, bursts[left][0])
                torch._C._set_sm_carveout_experimental(None)
                row = {
                    "format": "fp8" if fp8 else "bf16", "m": m, "n": n, "k": k, "how": how,
                    "burst_us": {left: statistics.median(found) for left, found in bursts.items()}, "hot_us": warm,
                }
                print(json.dumps(row), file=file, flush=True)


if __name__ == "__main__":
    main()

"""Slowdown of kernels by communication next to them and by the power cap, on real GPUs of one host. JSON lines.

    torchrun --standalone --nproc-per-node 4 -m validation.probes.interference > interference.jsonl

Each kernel runs back to back, alone and next to NCCL kernels that follow each other on another stream (every rank does
the same), timed by CUPTI: some milliseconds after a pause, at full clock (mode `burst`), and after a while of the same
(mode `heated`). Reported: medians of kernels wholly next to NCCL kernels and wholly without, of the NCCL kernels, SM clock
and power of GPU 0.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F

from validation.gpu_work import work_of

RANK = int(os.environ["RANK"])
SECONDS = float(os.environ.get("INTERFERENCE_SECONDS", "0.6"))  # of heating
MEBIBYTES = int(os.environ.get("INTERFERENCE_MIB", "512"))  # of the collectives' large buffer: longer than any kernel
CHUNK = 0.04  # seconds of kernels between two synchronisations
BURST = 0.006  # seconds of kernels after a pause: before the power cap lowers the clock


class Sensors:
    """SM clock (MHz) and power (W) of GPU 0, sampled by nvidia-smi every 20 ms."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, float, float]] = []
        if RANK:
            return
        if shutil.which("nvidia-smi") is None:
            return
        query = ["nvidia-smi", "--id=0", "--query-gpu=clocks.sm,power.draw.instant", "--format=csv,noheader,nounits", "-lms", "20"]
        self.process = subprocess.Popen(query, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            try:
                clock, power = (float(part) for part in line.split(","))
            except ValueError:
                continue
            self.samples.append((time.perf_counter(), clock, power))

    def median(self, since: float) -> dict[str, float]:
        recent = [s for s in self.samples if s[0] >= since]
        if not recent:
            return {}
        return {"sm_mhz": statistics.median(s[1] for s in recent), "watts": statistics.median(s[2] for s in recent)}


def kernels() -> dict[str, tuple[Callable[[], object], float]]:
    """Name -> call, flops of a call."""
    out: dict[str, tuple[Callable[[], object], float]] = {}

    def gemm(m: int, n: int, k: int, kind: str = "nt") -> None:
        sets = []
        for _ in range(3):
            a = torch.randn((k, m) if kind[0] == "t" else (m, k), device="cuda", dtype=torch.bfloat16)
            b = torch.randn((n, k) if kind[1] == "t" else (k, n), device="cuda", dtype=torch.bfloat16)
            sets.append((a.t() if kind[0] == "t" else a, b.t() if kind[1] == "t" else b, torch.empty(m, n, device="cuda", dtype=torch.bfloat16)))
        turn = [0]

        def call() -> None:
            turn[0] = (turn[0] + 1) % 3
            a, b, c = sets[turn[0]]
            torch.mm(a, b, out=c)

        out[f"mm {kind} {m} {n} {k}"] = (call, 2.0 * m * n * k)

    gemm(4096, 4096, 4096)
    gemm(4096, 1024, 4096)
    gemm(4096, 14336, 4096)
    gemm(4096, 4096, 14336, "nn")
    gemm(4096, 14336, 4096, "tn")
    gemm(4096, 32000, 4096)
    gemm(8192, 14336, 4096)
    gemm(2048, 8192, 2048)
    gemm(2048, 2048, 2048)
    gemm(8192, 2048, 8192, "nn")
    gemm(8192, 2048, 2048)
    gemm(8192, 8192, 2048)
    q = torch.randn(1, 32, 4096, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    k = torch.randn(1, 32, 4096, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    flops = 2 * 2.0 * 32 * 4096 * 4096 * 128 / 2
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    backward = torch.ops.aten._scaled_dot_product_flash_attention_backward
    with torch.no_grad():
        o = flash(q, k, k, 0.0, True)
    out["flash forward"] = (lambda: flash(q, k, k, 0.0, True), flops)
    out["flash backward"] = (
        lambda: backward(o[0], q, k, k, o[0], o[1], o[2], o[3], o[4], o[5], 0.0, True, o[6], o[7]), 2.5 * flops,
    )
    big = torch.randn(4096, 14336, device="cuda", dtype=torch.bfloat16)
    row, weight = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16), torch.randn(4096, device="cuda", dtype=torch.bfloat16)
    out["silu"] = (lambda: F.silu(big), 0.0)
    out["add"] = (lambda: row + row, 0.0)
    out["rms_norm"] = (lambda: F.rms_norm(row, (4096,), weight), 0.0)
    p = [torch.randn(4096, 4096, device="cuda") for _ in range(8)]
    out["foreach_add"] = (lambda: torch._foreach_add_(p, p), 0.0)
    return out


def main() -> None:
    torch.cuda.set_device(RANK)
    dist.init_process_group("nccl", device_id=torch.device("cuda", RANK))
    world = dist.get_world_size()
    sensors = Sensors()
    side = torch.cuda.Stream(priority=-1)
    elements = MEBIBYTES << 19  # of bf16 in the large buffer
    large = torch.randn(elements, device="cuda", dtype=torch.bfloat16)
    small = torch.randn(elements // world, device="cuda", dtype=torch.bfloat16)
    neighbours: dict[str, Callable[[], object] | None] = {
        "alone": None,
        "all_gather": lambda: dist.all_gather_into_tensor(large, small),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(small, large),
        "all_reduce": lambda: dist.all_reduce(large),
    }
    for name, (call, flops) in kernels().items():
        for neighbour, collective in neighbours.items():
            if neighbour == "all_reduce" and "4096 4096 4096" not in name:
                continue
            with torch.no_grad():
                one = duration(call, 5)
                together = duration(collective, 5) if collective else 0.0
                calls = agreed(max(4, int(CHUNK / one)))
                collectives = agreed(int(calls * one * 1.5 / together) + 1) if collective else 0

                few = max(3, int(calls * BURST / CHUNK))
                few_collectives = agreed(int(few * one * 1.5 / together) + 1) if collective else 0
                time.sleep(0.4)
                with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
                    chunk(call, few, collective, few_collectives, side)
                burst = split(profiler)
                begin = time.perf_counter()
                for _ in range(agreed(int((SECONDS if flops else SECONDS / 3) / CHUNK) + 1)):
                    chunk(call, calls, collective, collectives, side)
                heated = time.perf_counter()
                with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
                    chunk(call, calls, collective, collectives, side)
            if RANK == 0:
                for mode, found in (("burst", burst), ("heated", split(profiler))):
                    covered, alone, nccl, kernel = found
                    print(json.dumps({
                        "kernel": name, "beside": neighbour, "world": world, "mode": mode, "together": len(covered),
                        "together_us": middle(covered), "alone": len(alone), "alone_us": middle(alone), "nccl_us": middle(nccl),
                        "nccl_alone_us": together * 1e6, "flops": flops, "cuda_kernel": kernel,
                        **(sensors.median((begin + heated) / 2) if mode == "heated" else {}),
                    }), flush=True)
    dist.destroy_process_group()


def chunk(
    call: Callable[[], object], calls: int, collective: Callable[[], object] | None, collectives: int, side: torch.cuda.Stream
) -> None:
    """Issues both mixed, so that neither queue fills up."""
    issued = 0
    for i in range(calls):
        while collective and issued * calls < (i + 1) * collectives:
            with torch.cuda.stream(side):
                collective()
            issued += 1
        call()
    torch.cuda.synchronize()


def split(profiler: torch.profiler.profile) -> tuple[list[float], list[float], list[float], str]:
    """Durations (us) of the main kernel wholly next to NCCL kernels and wholly without, of the NCCL kernels, its name."""
    events = [
        (e.start_ns(), e.start_ns() + e.duration_ns(), e.name()) for e in work_of(profiler) if "Mem" not in e.name()
    ]
    nccl = sorted((a, b) for a, b, name in events if "nccl" in name)
    time_of: dict[str, int] = {}
    for a, b, name in events:
        if "nccl" not in name:
            time_of[name] = time_of.get(name, 0) + b - a
    kernel = max(time_of, key=time_of.__getitem__, default="")
    covered, alone = [], []
    for a, b, name in events:
        if name != kernel:
            continue
        next_to = sum(max(0, min(b, d) - max(a, c)) for c, d in nccl)
        if next_to >= 0.98 * (b - a):
            covered.append((b - a) * 1e-3)
        elif next_to == 0:
            alone.append((b - a) * 1e-3)
    return covered, alone, [(b - a) * 1e-3 for a, b in nccl], kernel[:120]


def middle(values: list[float]) -> float:
    return statistics.median(values) if values else 0.0


def duration(call: Callable[[], object] | None, count: int) -> float:
    """Seconds per call of `count` calls back to back."""
    assert call
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    call()
    torch.cuda.synchronize()
    a.record()
    for _ in range(count):
        call()
    b.record()
    torch.cuda.synchronize()
    return a.elapsed_time(b) * 1e-3 / count


def agreed(count: int) -> int:
    """The same on all ranks."""
    t = torch.tensor(count, device="cuda")
    dist.all_reduce(t, dist.ReduceOp.MAX)
    return int(t)


if __name__ == "__main__":
    main()

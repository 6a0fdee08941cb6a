"""Joules of five workloads on one GPU, by NVML's counter of total energy. JSON lines.

    python -m validation.probes.energy > real.jsonl
    phantora trace --cluster 1x1xH100 -m validation.probes.energy > simulated.jsonl
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pynvml
import torch


def workloads() -> dict[str, tuple[Callable[[], None], bool]]:
    """By name: what runs, and whether it runs once before."""
    a = torch.randn(8192, 8192, device="cuda").bfloat16()
    b = torch.randn(8192, 8192, device="cuda").bfloat16()
    small = torch.randn(256, 256, device="cuda")
    big = torch.empty(1 << 29, device="cuda", dtype=torch.bfloat16)  # zeros, which draw less than other values
    layers = [
        torch.nn.TransformerEncoderLayer(2048, 16, 8192, 0.0, batch_first=True, device="cuda", dtype=torch.bfloat16)
        for _ in range(8)
    ]
    net = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5, fused=True)
    x = torch.randn(8, 1024, 2048, device="cuda", dtype=torch.bfloat16)

    def products() -> None:
        for _ in range(4000):
            torch.mm(a, b)

    def memory() -> None:
        for _ in range(3000):
            big.mul_(1.0)

    def host_bound() -> None:
        y = small
        for _ in range(400000):
            y = y + 1.0

    def training() -> None:
        for _ in range(60):
            net(x).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return {
        "idle": (lambda: time.sleep(5), False), "products": (products, True), "memory": (memory, False),
        "host_bound": (host_bound, False), "training": (training, True),
    }  # fmt: skip


def main() -> None:
    torch.manual_seed(0)
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    for name, (run, before) in workloads().items():
        if before:
            run()
        torch.cuda.synchronize()
        begin, drawn = time.perf_counter(), pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
        run()
        torch.cuda.synchronize()
        seconds, drawn = time.perf_counter() - begin, pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) - drawn
        joules = drawn / 1e3
        print(json.dumps({"workload": name, "seconds": seconds, "joules": joules, "watts": joules / seconds}), flush=True)


if __name__ == "__main__":
    main()

"""Joules of workloads on one GPU, by NVML's counter of total energy. JSON lines.

    python -m validation.probes.energy [WORKLOAD ...] > real.jsonl
    phantora trace --cluster 1x1xH100 -m validation.probes.energy > simulated.jsonl
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

import pynvml
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def workloads() -> dict[str, tuple[Callable[[], None], bool]]:
    """Workloads by name: the function, and whether it runs once before."""
    a = torch.randn(8192, 8192, device="cuda").bfloat16()
    b = torch.randn(8192, 8192, device="cuda").bfloat16()
    small = torch.randn(256, 256, device="cuda")
    big = torch.empty(1 << 29, device="cuda", dtype=torch.bfloat16)  # zeros, which draw less than other values
    values = torch.randn(1 << 29, device="cuda", dtype=torch.bfloat16)

    def products() -> None:
        for _ in range(4000):
            torch.mm(a, b)

    def memory() -> None:
        for _ in range(3000):
            big.mul_(1.0)

    def random_memory() -> None:
        for _ in range(3000):
            values.mul_(-1.0)

    def host_bound() -> None:
        y = small
        for _ in range(400000):
            y = y + 1.0

    return {
        "idle": (lambda: time.sleep(5), False), "products": (products, True), "memory": (memory, False),
        "random_memory": (random_memory, False), "host_bound": (host_bound, False),
        "training": (training(layers(8, 2048), 8192, 60), True),
        "small_training": (training(layers(12, 256), 256, 100), True),
        "fsdp2": (training(sharded(layers(6, 4096, torch.float32)), 4096, 40), True),
    }


def layers(number: int, width: int, dtype: torch.dtype = torch.bfloat16) -> torch.nn.Sequential:
    """A transformer without embedding and loss."""
    return torch.nn.Sequential(*(
        torch.nn.TransformerEncoderLayer(
            width, width // 128, 4 * width, 0.0, batch_first=True, device="cuda", dtype=dtype
        )
        for _ in range(number)
    ))


def sharded(net: torch.nn.Sequential) -> torch.nn.Sequential:
    """FSDP2 in a group of this rank alone, in bfloat16."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555"}.items():
        os.environ.setdefault(name, value)
    torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", 0))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for layer in net:
        fully_shard(layer, mp_policy=policy)
    fully_shard(net, mp_policy=policy)
    return net


def training(net: torch.nn.Sequential, tokens: int, steps: int) -> Callable[[], None]:
    """Steps with AdamW on random activations in sequences of at most 1024."""
    width = next(net.parameters()).shape[-1]
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5, fused=True)
    sequence = min(tokens, 1024)
    x = torch.randn(tokens // sequence, sequence, width, device="cuda", dtype=torch.bfloat16)

    def run() -> None:
        for _ in range(steps):
            net(x).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


def main() -> None:
    torch.manual_seed(0)
    asked = sys.argv[1:]
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    for name, (run, before) in workloads().items():
        if asked and name not in asked:
            continue
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

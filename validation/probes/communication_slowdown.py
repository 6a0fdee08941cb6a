"""Slowdown of collectives next to kernels, on real GPUs of one host. JSON lines.

    torchrun --standalone --nproc-per-node 2 -m validation.probes.communication_slowdown > neighbours.jsonl

Every rank runs one kernel back to back on its first stream, and from time to time a collective on another, which waits
for an event of the first one as DDP's does. A collective's transfer lasts from the last rank's start to the first rank's
end (CUPTI's times, on the host's clock). Reported for each collective, kernel next to it and priority: quartiles of the transfers, the
share of the time next to kernels, the kernel's time next to the collective and alone. `one` has kernels next to it on rank 0 only.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

from validation.gpu_work import work_of

RANK = int(os.environ["RANK"])
COUNT = int(os.environ.get("BESIDE_COUNT", "16"))  # collectives of a case
MIB = 1 << 20
SIZES = {"all_reduce": (16, 32, 56, 128), "all_gather": (128,), "reduce_scatter": (128,)}  # MiB of the larger buffer


@dataclass(frozen=True)
class Neighbour:
    """A kernel to run next to collectives, and the bytes it moves if none stays in L2."""

    name: str
    call: Callable[[], object]
    bytes: float


def neighbours() -> list[Neighbour]:
    def product(m: int, n: int, k: int) -> Neighbour:
        sets = [
            (torch.randn(m, k, device="cuda", dtype=torch.bfloat16), torch.randn(n, k, device="cuda", dtype=torch.bfloat16).t(),
             torch.empty(m, n, device="cuda", dtype=torch.bfloat16)) for _ in range(3)
        ]
        turn = [0]

        def call() -> None:
            turn[0] = (turn[0] + 1) % 3
            a, b, c = sets[turn[0]]
            torch.mm(a, b, out=c)

        return Neighbour(f"mm {m} {n} {k}", call, 2.0 * (m * n + m * k + n * k))

    def elements(name: str, mib: int, moved: int, call: Callable[[torch.Tensor, torch.Tensor], object]) -> Neighbour:
        """Out of buffers that take turns, so that nothing is in L2 unless it is small."""
        several = max(1, 512 // mib)
        x = [torch.randn(mib * MIB // 2, device="cuda", dtype=torch.bfloat16) for _ in range(several)]
        y = [torch.empty_like(t) for t in x]
        turn = [0]

        def run() -> None:
            turn[0] = (turn[0] + 1) % several
            call(x[turn[0]], y[turn[0]])

        return Neighbour(f"{name} {mib} MiB", run, float(moved * mib * MIB))

    q = torch.randn(2, 16, 4096, 128, device="cuda", dtype=torch.bfloat16)
    row = torch.randn(4096, 1024, device="cuda", dtype=torch.bfloat16)
    into = torch.empty_like(row)
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    return [
        Neighbour("none", lambda: None, 0.0),
        product(4096, 4096, 4096),
        product(8192, 2048, 2048),
        product(8192, 8192, 2048),
        product(8192, 2048, 8192),
        product(4096, 14336, 4096),
        Neighbour("flash", lambda: flash(q, q, q, 0.0, True), 4.0 * q.numel() * 2),
        elements("silu", 112, 2, lambda x, y: torch.ops.aten.silu.out(x, out=y)),
        elements("mul", 128, 3, lambda x, y: torch.mul(x, y, out=y)),
        elements("copy", 64, 2, lambda x, y: y.copy_(x)),
        elements("copy", 32, 2, lambda x, y: y.copy_(x)),
        elements("copy", 16, 2, lambda x, y: y.copy_(x)),
        elements("sin", 64, 2, lambda x, y: torch.sin(x, out=y)),
        elements("sum", 256, 1, lambda x, y: x.sum()),
        elements("fill", 256, 1, lambda x, y: y.fill_(1.0)),
        Neighbour("copy 8 MiB again", lambda: into.copy_(row), 2.0 * row.numel() * 2),
        Neighbour("rms_norm 8 MiB again", lambda: F.rms_norm(row, (1024,)), 2.0 * row.numel() * 2),
    ]


def collective_of(operation: str, elements: int, world: int) -> Callable[[], object]:
    """On a buffer of its own of that many elements of bf16."""
    large = torch.zeros(elements, device="cuda", dtype=torch.bfloat16)
    small = torch.zeros(elements // world, device="cuda", dtype=torch.bfloat16)
    if operation == "all_reduce":
        return lambda: dist.all_reduce(large)
    if operation == "all_gather":
        return lambda: dist.all_gather_into_tensor(large, small)
    return lambda: dist.reduce_scatter_tensor(small, large)


def timed(call: Callable[[], object], count: int) -> float:
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / count


def agreed(value: float) -> float:
    t = torch.tensor([value], device="cuda", dtype=torch.float64)
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    return float(t.item())


def run(neighbour: Neighbour, collective: Callable[[], object], per: int, side: torch.cuda.Stream, alone: bool) -> list[tuple[int, int, bool]]:
    """(start, end, is a collective) of every kernel."""
    main = torch.cuda.current_stream()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(COUNT):
            for _ in range(per):
                neighbour.call()
            side.wait_event(main.record_event())
            with torch.cuda.stream(side):
                collective()
            if alone:
                main.wait_event(side.record_event())
        torch.cuda.synchronize()
    return [
        (e.start_ns(), e.start_ns() + e.duration_ns(), "nccl" in e.name())
        for e in work_of(profiler)
        if not e.name().startswith("Mem")
    ]


def report(found: list[list[tuple[int, int, bool]]]) -> dict[str, object]:
    ranks = [np.array(sorted(events), dtype=np.int64) for events in found]
    nccl = [r[r[:, 2] == 1] for r in ranks]
    count = min(len(n) for n in nccl)
    transfers, shares, waits = [], [], []
    for i in range(1, count):
        start, end = max(n[i, 0] for n in nccl), min(n[i, 1] for n in nccl)
        transfers.append((end - start) * 1e-3)
        waits.append((start - min(n[i, 0] for n in nccl)) * 1e-3)
        next_to = [(np.minimum(r[r[:, 2] == 0, 1], end) - np.maximum(r[r[:, 2] == 0, 0], start)).clip(0).sum() for r in ranks]
        shares.append([round(b / max(1, end - start), 3) for b in next_to])
    mine = ranks[0][ranks[0][:, 2] == 0]
    covered: list[float] = []
    free: list[float] = []
    for a, b, _ in mine:
        overlap = (np.minimum(nccl[0][:, 1], b) - np.maximum(nccl[0][:, 0], a)).clip(0).sum()
        (covered if overlap >= 0.97 * (b - a) else free if overlap == 0 else []).append((b - a) * 1e-3)
    return {
        "transfer_us": [round(float(v), 1) for v in np.percentile(transfers, (5, 25, 50, 75, 95))],
        "wait_us": round(float(np.median(waits)), 1),
        "share": [round(float(v), 2) for v in np.mean(shares, 0)],
        "together_us": round(float(np.median(covered)), 1) if covered else None,
        "alone_us": round(float(np.median(free)), 1) if free else None,
    }


def main() -> None:
    torch.cuda.set_device(RANK)
    dist.init_process_group("nccl", device_id=torch.device("cuda", RANK))
    world = dist.get_world_size()
    idle = Neighbour("none", lambda: None, 0.0)
    sides = {priority: torch.cuda.Stream(priority=priority) for priority in (0, -1)}
    calls: dict[tuple[str, int], Callable[[], object]] = {}
    for operation, sizes in SIZES.items():
        for mib in sizes:
            calls[operation, mib] = collective_of(operation, mib * MIB // 2, world)
    alone = {key: agreed(timed(call, 10)) for key, call in calls.items()}
    for neighbour in neighbours():
        one = agreed(timed(neighbour.call, 10)) if neighbour.bytes else 1.0
        for (operation, mib), collective in calls.items():
            modes = [(0, "all"), (-1, "all")] if neighbour.bytes else [(0, "all")]
            if neighbour.bytes and operation == "all_reduce" and mib == 56:
                modes.append((0, "one"))
            for priority, where in modes:
                per = int(1.8 * alone[operation, mib] / one) + 1 if neighbour.bytes else 0
                mine = neighbour if where == "all" or RANK == 0 else idle
                time.sleep(0.05)
                events = run(mine, collective, per if mine.bytes else 0, sides[priority], not neighbour.bytes)
                found: list[list[tuple[int, int, bool]]] = [[] for _ in range(world)]
                dist.all_gather_object(found, events)
                if RANK == 0:
                    print(json.dumps({
                        "operation": operation, "mib": mib, "world": world, "beside": neighbour.name, "bytes": neighbour.bytes, "priority": priority,
                        "where": where, "kernel_us": round(one * 1e6, 1), **report(found),
                    }), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

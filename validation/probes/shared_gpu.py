"""Processes that share one GPU: time slices, slowdowns, memory.

``python -m validation.probes.shared_gpu OUT`` without MPS, ``OUT mps`` under a control daemon. torch is imported once;
each process of a case is a fork. A line of the file is a process: its role, the memory of the GPU that all have taken,
and either the times at which its one long kernel stood still or the time of each of its kernels.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

SECONDS = 1.0
SPIN = r"""
extern "C" __global__ void spin(long long *log, int room, int us, int gap) {
  long long ns = us * 1000LL, t, begin, last;
  int n = 1;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  last = begin;
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    if (threadIdx.x == 0 && blockIdx.x == 0 && t - last > gap && n + 1 < room) {
      log[n] = last;
      log[n + 1] = t;
      n += 2;
    }
    last = t;
  } while (t - begin < ns);
  if (threadIdx.x == 0 && blockIdx.x == 0) { log[0] = n; log[room] = begin; log[room + 1] = last; }
}"""
ROOM, LEAST_GAP_NS = 20000, 10_000
SLICED = (
    "idle idle", "spin", "spin spin", "spin spin spin", "spin132 spin132", "spin idle", "spin ticks", "ticks",
    "matmul", "matmul matmul", "copy", "copy copy", "medium", "medium medium", "small", "small small", "h2d", "h2d h2d",
    "matmul copy", "matmul small", "matmul h2d", "medium small", "small small small",
)
MPS = (
    "idle idle", "spin spin", "matmul", "matmul matmul", "copy copy", "medium medium", "small", "small small",
    "matmul copy", "matmul small",
)


def used() -> int:
    """Bytes of the GPU that all processes have taken."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def spread(values: list[float]) -> list[float]:
    """Minimum, 10, 25, 50, 75 and 90 %, maximum."""
    ordered = sorted(values)
    shares = (0, 0.1, 0.25, 0.5, 0.75, 0.9, 1)
    return [round(ordered[int((len(ordered) - 1) * share)], 2) for share in shares] if ordered else []


def product(size: int) -> Callable[[], Any]:
    """A product of two square matrices."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in "ab")
    return lambda: a @ b


def work_of(role: str) -> tuple[Callable[[], Any], int]:
    """The kernel that `role` repeats, and how many are timed together."""
    if role in ("matmul", "medium"):
        return product(8192 if role == "matmul" else 2048), 1 if role == "matmul" else 50
    if role == "small":
        few = torch.ones(1024, device="cuda")
        return lambda: few.add_(1), 1000
    size = 1 << (30 if role == "copy" else 28)
    to = torch.empty(size, dtype=torch.uint8, device="cuda")
    source = torch.ones_like(to) if role == "copy" else torch.ones(size, dtype=torch.uint8).pin_memory()
    return lambda: to.copy_(source, non_blocking=True), 1


def spinning(blocks: int, wait: Callable[[], None]) -> dict[str, Any]:
    """When one kernel of that many blocks stood still."""
    spin = torch.cuda._compile_kernel(SPIN, "spin")
    log = torch.zeros(ROOM + 2, dtype=torch.int64, device="cuda")
    wait()
    spin((blocks, 1, 1), (32, 1, 1), (log, ROOM, int(SECONDS * 1e6), LEAST_GAP_NS))
    found = log.cpu().tolist()
    gaps = [(found[i], found[i + 1]) for i in range(1, found[0], 2)]
    on = [(after - end) / 1e3 for (_, end), (after, _) in pairwise(gaps)]
    return {"off_us": spread([(end - begin) / 1e3 for begin, end in gaps]), "on_us": spread(on)}


def ticking(wait: Callable[[], None]) -> dict[str, Any]:
    """Latency of a kernel of 50 us each 5 ms."""
    spin = torch.cuda._compile_kernel(SPIN, "spin")
    log, times = torch.zeros(ROOM + 2, dtype=torch.int64, device="cuda"), []
    wait()
    end = time.perf_counter() + SECONDS
    while (begin := time.perf_counter()) < end:
        spin((1, 1, 1), (32, 1, 1), (log, ROOM, 50, 1 << 30))
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e6)
        time.sleep(0.005)
    return {"latency_us": spread(times)}


def repeating(role: str, wait: Callable[[], None]) -> dict[str, Any]:
    """Time of each kernel, by the host and by events."""
    work, batch = work_of(role)
    for _ in range(5):
        work()
    wait()
    pairs, begin = [], time.perf_counter()
    while time.perf_counter() < begin + SECONDS:
        pair = [torch.cuda.Event(enable_timing=True) for _ in "ab"]
        pair[0].record()
        for _ in range(batch):
            work()
        pair[1].record()
        pairs.append(pair)
        if len(pairs) % 4 == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    took = time.perf_counter() - begin
    each = [first.elapsed_time(last) / batch * 1e3 for first, last in pairs]
    return {"us_each": took / len(pairs) / batch * 1e6, "event_us": spread(each)}


def process(role: str, barrier: Any, results: Any) -> None:
    """One process of a case."""
    torch.ones(1, device="cuda")

    def wait() -> None:
        torch.cuda.synchronize()
        barrier.wait(40)

    if role.startswith("spin"):
        row = spinning(int(role[4:] or 1), wait)
    elif role == "ticks":
        row = ticking(wait)
    elif role == "idle":
        wait()
        row = {}
        time.sleep(SECONDS)
    else:
        row = repeating(role, wait)
    results.put({"role": role, **row, "used": used()})
    barrier.wait(40)  # all contexts count


def main() -> None:
    """Runs all cases."""
    forked = mp.get_context("fork")
    with open(sys.argv[1], "a") as out:
        for case in MPS if "mps" in sys.argv else SLICED:
            roles = case.split()
            barrier, results = forked.Barrier(len(roles)), forked.Queue()
            group = [forked.Process(target=process, args=(role, barrier, results)) for role in roles]
            for one in group:
                one.start()
            for _ in group:
                out.write(json.dumps({"case": case, "mps": "mps" in sys.argv, **results.get(timeout=60)}) + "\n")
            for one in group:
                one.join()


if __name__ == "__main__":
    main()

"""Training steps near a GPU's capacity, where torch's allocator gives blocks back and asks again. JSON lines.

    python -m validation.workloads.near_capacity OUT.jsonl [CASE ...]     # a process each; real, or under phantora trace
    python -m validation.workloads.near_capacity OUT.jsonl blocks         # what cudaMalloc and cudaFree take
    python -m validation.workloads.near_capacity OUT.jsonl calls CASE ... # and in the steps of a case, by torch's profiler

Sequences and images of changing size want blocks of changing size; a ballast leaves little more than what the steps need at
once. The same sizes come round, so that steps of one size can be compared.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from validation.workloads.host_runs import GIB, Language, Unet, trained, words
from validation.workloads.timing import row_of

ROUNDS = 4
MANY = 40
SEQUENCES = (2048, 1024, 1536, 768, 1792, 1280)
IMAGES = (64, 48, 72, 56, 80)


def language(seq: int, model: Language) -> torch.Tensor:
    return F.cross_entropy(model(words(8, seq)).float().view(-1, 32000), words(8, seq).view(-1))


def image(size: int, model: Unet) -> torch.Tensor:
    x, t = torch.randn(16, 4, size, size, device="cuda"), torch.randn(16, 256, device="cuda")
    return F.mse_loss(model(x, t).float(), x)


@dataclass(frozen=True)
class Case:
    room: float
    """GiB next to the ballast."""
    sizes: tuple[int, ...] = SEQUENCES
    allocator: str = ""
    """Value of PYTORCH_CUDA_ALLOC_CONF."""
    image: bool = False
    rounds: int = ROUNDS
    """Rounds of the sizes; all but the first count. With one, all sizes have run before; all steps count but the first
    four."""


UNSPLIT = "max_split_size_mb:32"


def drawn(low: int, high: int, unit: int, seed: int) -> tuple[int, ...]:
    """Sizes of 30 steps in a row, all seen before: two of three steps are short."""
    chance = random.Random(seed)
    pool = [unit * chance.randint(low // unit, high // unit) for _ in range(10)]
    return tuple(chance.choice(pool) for _ in range(30))


CASES = {
    "language": Case(21.15), "language_expandable": Case(20.7, allocator="expandable_segments:True"), "image": Case(3.5, IMAGES, image=True),
    "language_roomy": Case(60.0),
    # Blocks of many sizes that are not split, and sizes that grow: blocks are given back again and again.
    "drawn": Case(22.0, drawn(512, 2048, 8, 1), UNSPLIT, rounds=2), "drawn_tight": Case(19.5, drawn(512, 2048, 8, 1), UNSPLIT, rounds=2),
    "drawn_images": Case(4.0, drawn(48, 96, 8, 3), UNSPLIT, image=True, rounds=2), "growing": Case(22.0, tuple(range(1024, 1984, 32)), rounds=1),
    "drawn_again": Case(24.0, drawn(768, 2048, 8, 11), UNSPLIT, rounds=2), "drawn_images_again": Case(5.0, drawn(48, 104, 8, 13), UNSPLIT, image=True, rounds=2),
    "growing_third": Case(27.0, tuple(range(1500, 2460, 40)), rounds=1), "growing_long": Case(34.0, tuple(range(2048, 2944, 64)), rounds=1),
    "drawn_third": Case(24.0, drawn(1024, 2048, 8, 21), UNSPLIT, rounds=2), "drawn_fourth": Case(21.0, drawn(640, 1792, 8, 31), UNSPLIT, rounds=2),
    "growing_again": Case(25.0, tuple(range(1280, 2240, 40)), rounds=1), "growing_images": Case(14.0, tuple(range(64, 184, 8)), image=True, rounds=1),
}


def run(case: str, profiler: Profiler | None = None) -> dict[str, object]:
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    room, sizes, ofimages = CASES[case].room, CASES[case].sizes, CASES[case].image
    model: Any = (Unet(128) if ofimages else Language(1024, 12, 16)).cuda()
    loss_of: Any = image if ofimages else language
    turn = [0]
    steps = trained(model, lambda: loss_of(sizes[turn[0] % len(sizes)], model), amp=True)
    for turn[0] in range(len(sizes) if CASES[case].rounds == 1 else 1):  # plans of sizes are made once
        steps()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    kept = torch.cuda.memory_reserved()
    ballast = torch.empty(max(free + kept - int(room * GIB), 1), dtype=torch.uint8, device="cuda")
    times, retries = [], []
    if profiler:
        profiler.start()
    for turn[0] in range(len(sizes) * CASES[case].rounds):
        torch.cuda.synchronize()
        before, begin = torch.cuda.memory_stats()["num_alloc_retries"], time.perf_counter()
        steps()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
        retries.append(torch.cuda.memory_stats()["num_alloc_retries"] - before)
    if profiler:
        profiler.stop()
    late = times[len(sizes) if CASES[case].rounds > 1 else 4 :]
    assert ballast.numel()
    mean = sum(late) / len(late)  # sizes differ from step to step
    return row_of(f"near_{case}", late, name="near_capacity", median_iter_s=mean, retries=retries)


class Profiler:
    """torch's, of which it keeps the calls that take and give back memory: (name, s since the start, us)."""

    NAMES = ("cudaMalloc", "cudaFree", "cudaStreamSynchronize", "cudaDeviceSynchronize")

    def __init__(self) -> None:
        self._profile = torch.profiler.profile(activities=list(torch.profiler.supported_activities()))

    def start(self) -> None:
        self._profile.start()

    def stop(self) -> None:
        self._profile.stop()

    def calls(self) -> list[tuple[str, float, float]]:
        events = self._profile.profiler.kineto_results.events()  # type: ignore[union-attr]
        found = [event for event in events if event.name() in self.NAMES]
        first = min(event.start_ns() for event in events)
        return [(e.name(), (e.start_ns() - first) / 1e9, e.duration_ns() / 1e3) for e in found]


def calls(case: str) -> dict[str, object]:
    """As :func:`run`; all steps' times, and the memory calls."""
    profiler = Profiler()
    row = run(case, profiler)
    return {**row, "name": "near_capacity_calls", "calls": profiler.calls()}


def blocks() -> list[dict[str, object]]:
    """us of cudaMalloc and cudaFree while a GPU is filled and emptied: its first pass, one at once after it, one later;
    of calls that are refused; and of a block that is given back and taken again on a full GPU."""
    runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}")  # type: ignore[union-attr]
    rows: list[dict[str, object]] = []
    torch.cuda.init()
    torch.zeros(1, device="cuda")

    def timed(name: str, call: Callable[[], int], **more: object) -> None:
        begin = time.perf_counter()
        status = call()
        rows.append({"name": name, "us": (time.perf_counter() - begin) * 1e6, "status": status, **more})

    def take(size: int, name: str, **more: object) -> ctypes.c_void_p:
        pointer = ctypes.c_void_p()
        timed(name, lambda: int(runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size))), bytes=size, **more)
        return pointer

    for block in (GIB // 16, GIB // 4, GIB, 4 * GIB):
        for turn in ("first", "at once", "later"):
            if turn == "later":
                time.sleep(1.0)
            held = []
            while torch.cuda.mem_get_info()[0] > 2 * block:
                held.append(take(block, "malloc", turn=turn))
            for size in (8 * GIB, 64 * GIB):
                for _ in range(MANY):
                    take(size, "refused", turn=turn, held=len(held))
            for _ in range(MANY if block < GIB else 8):
                pointer = held.pop()
                timed("free alone", partial(lambda pointer: int(runtime.cudaFree(pointer)), pointer), bytes=block)
                held.append(take(block, "malloc again"))
            while held:
                pointer = held.pop()
                timed("free", partial(lambda pointer: int(runtime.cudaFree(pointer)), pointer), bytes=block, turn=turn)
    return rows


def main() -> None:
    path, names = sys.argv[1], sys.argv[2:]
    if names == ["blocks"]:
        Path(path).write_text("".join(json.dumps(row) + "\n" for row in blocks()), encoding="utf-8")
        return
    if len(names) == 1 or (len(names) == 2 and names[0] == "calls"):
        if allocator := CASES[names[-1]].allocator:  # read when the allocator is first used
            os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", allocator)
        row = run(names[0]) if len(names) == 1 else calls(names[1])
        with open(path, "a", encoding="utf-8") as file:
            print(json.dumps(row), file=file)
        print(json.dumps({**row, "calls": ()}), flush=True)
        return
    how = ["calls"] if names[:1] == ["calls"] else []
    for name in names[len(how) :] or CASES:
        done = subprocess.run([sys.executable, __file__, path, *how, name], timeout=120, check=False)
        print(f"{name}: status {done.returncode}", flush=True)


if __name__ == "__main__":
    main()

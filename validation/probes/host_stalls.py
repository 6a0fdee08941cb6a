"""Work of a host next to training: Python's garbage collection, and checkpoints that are staged in a thread. JSON lines.

    python -m validation.probes.host_stalls --out FILE.jsonl [--parts collections staging]

`collection` rows: `gc.collect()` next to N live objects of a kind, and of N objects of garbage. `staging` rows: a step of a
network on a GPU without checkpoints (`none`), after one that has been written (`wait`), and next to the copy of one (`free`).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

OBJECTS = (0, 100_000, 300_000, 1_000_000, 2_000_000)
STEPS = 5


class Node:
    """An object with attributes."""

    def __init__(self, n: int) -> None:
        self.n, self.next = n, [n]


KINDS: dict[str, Callable[[int], object]] = {"list": lambda n: [n], "nested": lambda n: [[n], {n: [n]}], "object": Node}


def collected(rounds: int = 3) -> float:
    """Median ms of a collection that frees nothing."""
    gc.collect()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        gc.collect()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e3


def collections() -> Iterator[dict[str, Any]]:
    gc.disable()
    for kind, make in KINDS.items():
        for n in OBJECTS:
            before = len(gc.get_objects())
            live = [make(i) for i in range(n)]
            objects = len(gc.get_objects())
            yield {
                "row": "collection",
                "kind": kind,
                "made": n,
                "live": objects,
                "tracked": objects - before,
                "ms": collected(),
            }
            for item in live:
                if isinstance(item, list):
                    item.append(item)
                else:
                    vars(item)["self"] = item
            del live
            begin = time.perf_counter()
            freed = gc.collect()
            yield {"row": "garbage", "kind": kind, "made": n, "freed": freed, "ms": (time.perf_counter() - begin) * 1e3}
    import transformers  # noqa: F401  # the objects of a library

    yield {"row": "collection", "kind": "transformers", "live": len(gc.get_objects()), "ms": collected()}
    gc.enable()


def staging(how: str, pinned: bool, folder: Path) -> Iterator[dict[str, Any]]:
    """Steps of 24 layers; torch 2.11 cannot use a stager twice."""
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    d = 4096
    layers = [torch.nn.Linear(d, d, bias=False, dtype=torch.bfloat16) for _ in range(24)]
    net = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5, fused=True)
    x = torch.randn(16384, d, device="cuda", dtype=torch.bfloat16)
    shutil.rmtree(folder, ignore_errors=True)
    response: Any = None
    for step in range(STEPS):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        torch.cuda.synchronize()
        times = [time.perf_counter()]
        marks[0].record()
        loss = net(x).float().mean()
        marks[1].record()
        times.append(time.perf_counter())
        loss.backward()
        marks[2].record()
        times.append(time.perf_counter())
        optimizer.step()
        optimizer.zero_grad()
        marks[3].record()
        times.append(time.perf_counter())
        marks[3].synchronize()
        times.append(time.perf_counter())
        row: dict[str, Any] = {"row": "staging", "how": how, "pinned": pinned, "step": step}
        row["host_ms"] = [(b - a) * 1e3 for a, b in pairwise(times)]
        row["gpu_ms"] = [a.elapsed_time(b) for a, b in pairwise(marks)]
        if how != "none":
            begin = time.perf_counter()
            if response is not None:
                response.upload_completion.result()
            waited = time.perf_counter()
            options = StagingOptions(
                use_pinned_memory=pinned, use_shared_memory=False, use_async_staging=True, use_non_blocking_copy=pinned
            )
            state = {f"{i}.{k}": t for i, s in optimizer.state_dict()["state"].items() for k, t in s.items()}
            response = dcp.async_save(
                {"m": dict(net.state_dict()), "o": state},
                checkpoint_id=folder / str(step),
                async_stager=DefaultStager(options),
            )
            called = time.perf_counter()
            row["uploaded_ms"], row["call_ms"] = (waited - begin) * 1e3, (called - waited) * 1e3
            if how == "wait":
                response.staging_completion.result()
                row["staged_ms"] = (time.perf_counter() - called) * 1e3
        yield row
    if response is not None:
        response.upload_completion.result()
    shutil.rmtree(folder, ignore_errors=True)


def stagings() -> Iterator[dict[str, Any]]:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29577")
    dist.init_process_group("cpu:gloo,cuda:nccl", rank=0, world_size=1)
    folder = Path("/tmp/host_stalls")
    yield from staging("none", True, folder)
    for pinned in (True, False):
        for how in ("wait", "free"):
            yield from staging(how, pinned, folder)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", choices=("collections", "staging"), default=["collections", "staging"])
    options = parser.parse_args()
    parts = {"collections": collections, "staging": stagings}
    with open(options.out, "w", buffering=1) as out:
        for name in options.parts:
            for row in parts[name]():
                print(json.dumps(row), file=out)


if __name__ == "__main__":
    main()

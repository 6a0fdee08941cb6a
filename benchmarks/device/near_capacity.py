"""Training steps near a GPU's capacity, where torch's allocator gives blocks back and asks again. JSON lines.

    python benchmarks/device/near_capacity.py OUT.jsonl [CASE ...]     # a process each; real, or under phantora trace

Sequences and images of changing size want blocks of changing size; a ballast leaves little more than what the steps need at
once. The same sizes come round, so that steps of one size can be compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from host_runs import GIB, Language, Unet, trained, words

ROUNDS = 4
SEQUENCES = (2048, 1024, 1536, 768, 1792, 1280)
IMAGES = (64, 48, 72, 56, 80)


def language(seq: int, model: Language) -> torch.Tensor:
    return F.cross_entropy(model(words(8, seq)).float().view(-1, 32000), words(8, seq).view(-1))


def image(size: int, model: Unet) -> torch.Tensor:
    x, t = torch.randn(16, 4, size, size, device="cuda"), torch.randn(16, 256, device="cuda")
    return F.mse_loss(model(x, t).float(), x)


CASES = {  # room in GiB beside the ballast, expandable segments
    "language": (21.15, False), "language_expandable": (20.7, True), "image": (3.5, False), "language_roomy": (60.0, False),
}  # fmt: skip


def run(case: str) -> dict[str, object]:
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    room, _ = CASES[case]
    sizes = IMAGES if case == "image" else SEQUENCES
    model = (Unet(128) if case == "image" else Language(1024, 12, 16)).cuda()
    turn = [0]
    steps = trained(model, lambda: (image if case == "image" else language)(sizes[turn[0] % len(sizes)], model), amp=True)  # type: ignore[operator]
    steps()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    kept = torch.cuda.memory_reserved()
    ballast = torch.empty(max(free + kept - int(room * GIB), 1), dtype=torch.uint8, device="cuda")
    times, retries = [], []
    for turn[0] in range(len(sizes) * ROUNDS):
        torch.cuda.synchronize()
        before, begin = torch.cuda.memory_stats()["num_alloc_retries"], time.perf_counter()
        steps()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
        retries.append(torch.cuda.memory_stats()["num_alloc_retries"] - before)
    late = times[len(sizes) :]
    assert ballast.numel()
    return {
        "run_id": f"near_{case}", "name": "near_capacity", "iter_times": late, "median_iter_s": sum(late) / len(late), "retries": retries,
        "max_memory_allocated": torch.cuda.max_memory_allocated(), "max_memory_reserved": torch.cuda.max_memory_reserved(),
        "torch": torch.__version__, "gpu": torch.cuda.get_device_name(),
    }  # fmt: skip


def main() -> None:
    path, names = sys.argv[1], sys.argv[2:]
    if len(names) == 1:
        row = run(names[0])
        with open(path, "a", encoding="utf-8") as file:
            print(json.dumps(row), file=file)
        print(row["run_id"], row["median_iter_s"], row["retries"], row["max_memory_allocated"], row["max_memory_reserved"], flush=True)
        return
    for name in names or CASES:
        flags = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if CASES[name][1] else {}
        done = subprocess.run([sys.executable, __file__, path, name], env={**os.environ, **flags}, timeout=120, check=False)
        print(f"{name}: status {done.returncode}", flush=True)


if __name__ == "__main__":
    main()

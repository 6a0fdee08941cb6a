"""Steps of Megatron-Core on Transformer Engine's layers, on one GPU. Prints a JSON line that benchmarks/predict.py reads.

    torchrun --nproc-per-node 1 benchmarks/device/te_steps.py llama3-bf16 [--iters 12] [--out FILE]
    phantora trace --cluster 1x1xH100 benchmarks/device/te_steps.py llama3-bf16 --iters 6

The training loop is that of samples/megatron/pretrain_gpt.py; a step is what its interval timer says.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "samples" / "megatron"))

import pretrain_gpt
import torch
import torch.distributed as dist

from megatron_shapes import SHAPES, Shape

RUNS: dict[str, tuple[Shape, list[str]]] = {
    "llama3-bf16": (replace(SHAPES["llama3-8b"], layers=4, seq=4096), []),
    "llama3-delayed": (replace(SHAPES["llama3-8b"], layers=4, seq=4096), ["--fp8-recipe", "delayed"]),
    "llama3-tensorwise": (replace(SHAPES["llama3-8b"], layers=4, seq=4096), ["--fp8-recipe", "tensorwise"]),
    "llama2-7b-blockwise": (replace(SHAPES["llama2-7b"], layers=6), ["--fp8-recipe", "blockwise"]),
    "llama2-13b-bf16": (replace(SHAPES["llama2-13b"], layers=4), ["--micro-batch-size", "2"]),
    "mixtral-bf16": (replace(SHAPES["mixtral-8x7b"], layers=1), []),
}


class Timed(pretrain_gpt.Trainer):
    """Keeps what the interval timer says."""

    def log(self, iteration: int, elapsed: float, loss: float, grad_norm: float | None) -> None:
        times.append(elapsed)


times: list[float] = []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("--iters", type=int, default=12)
    parser.add_argument("--attention-backend", default="auto")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    shape, words = RUNS[chosen.run]
    sys.argv[1:] = ["--te", "--use-distributed-optimizer", "--train-iters", str(chosen.iters), *words]
    sys.argv += ["--attention-backend", chosen.attention_backend]
    args = pretrain_gpt.parse()
    pretrain_gpt.initialize(args)
    Timed(args, shape).train()
    row = {
        "run_id": f"te_steps-{chosen.run}", "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
        "median_iter_s": median(times[len(times) // 3 :]), "iter_times": times,
        "max_memory_allocated": torch.cuda.max_memory_allocated(),
        "max_memory_reserved": torch.cuda.max_memory_reserved(),
    }  # fmt: skip
    print(json.dumps(row), flush=True)
    if chosen.out:
        with chosen.out.open("a") as file:
            print(json.dumps(row), file=file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Steps of Megatron-Core on Transformer Engine's layers, on one and two GPUs. Rank 0 prints a JSON line that validation/predict.py reads.

    torchrun --nproc-per-node 2 -m validation.workloads.te_steps tp2-bf16 [--iters 12] [--out FILE] [--kernels FILE]
    phantora trace --cluster 1x2xH100 -m validation.workloads.te_steps tp2-bf16 --iters 6

The training loop is that of samples/megatron/pretrain_gpt.py; a step is what its interval timer says. `--kernels` profiles one
step more: a line [name, stream, start, duration] for each kernel of rank 0, in ns.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

import pretrain_gpt
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from megatron_shapes import SHAPES, Shape
from validation.gpu_work import work_of
from validation.workloads.timing import row_of

LLAMA3 = replace(SHAPES["llama3-8b"], layers=4, seq=4096)
LLAMA70 = replace(SHAPES["llama3-70b"], layers=2, seq=4096)
GPT = replace(SHAPES["gpt-16b"], layers=4)
TENSOR = ["--tp", "2", "--sequence-parallel"]
OVERLAPPED = [*TENSOR, "--tp-comm-overlap"]
DATA = ["--overlap-grad-reduce", "--overlap-param-gather"]
PIPELINE = ["--pp", "2", "--global-batch-size", "8"]

RUNS: dict[str, tuple[Shape, list[str]]] = {
    "llama3-bf16": (LLAMA3, []),
    "llama3-delayed": (LLAMA3, ["--fp8-recipe", "delayed"]),
    "llama3-tensorwise": (LLAMA3, ["--fp8-recipe", "tensorwise"]),
    "llama2-7b-blockwise": (replace(SHAPES["llama2-7b"], layers=6), ["--fp8-recipe", "blockwise"]),
    "llama2-13b-bf16": (replace(SHAPES["llama2-13b"], layers=4), ["--micro-batch-size", "2"]),
    "mixtral-bf16": (replace(SHAPES["mixtral-8x7b"], layers=1), []),
    # On two GPUs.
    "tp2-bf16": (replace(LLAMA3, layers=6), TENSOR),
    "tp2-overlap-bf16": (replace(LLAMA3, layers=6), OVERLAPPED),
    "tp2-delayed": (replace(LLAMA3, layers=6), [*TENSOR, "--fp8-recipe", "delayed"]),
    "tp2-overlap-delayed": (replace(LLAMA3, layers=6), [*OVERLAPPED, "--fp8-recipe", "delayed"]),
    "gpt16b-tp2-bf16": (GPT, [*TENSOR, "--micro-batch-size", "2"]),
    "gpt16b-tp2-overlap-bf16": (GPT, [*OVERLAPPED, "--micro-batch-size", "2"]),
    "llama70b-tp2-overlap-bf16": (LLAMA70, OVERLAPPED),
    "llama70b-tp2-overlap-delayed": (LLAMA70, [*OVERLAPPED, "--fp8-recipe", "delayed"]),
    "llama70b-tp2-delayed": (LLAMA70, [*TENSOR, "--fp8-recipe", "delayed"]),
    "dp2-bf16": (LLAMA3, DATA),
    "dp2-tensorwise": (LLAMA3, [*DATA, "--fp8-recipe", "tensorwise"]),
    "cp2-bf16": (replace(LLAMA3, seq=16384), ["--cp", "2"]),
    "pp2-bf16": (replace(LLAMA3, layers=8), PIPELINE),
    "pp2-interleaved-bf16": (replace(LLAMA3, layers=8), [*PIPELINE, "--vpp", "2", "--overlap-p2p"]),
    "mixtral-ep2-bf16": (replace(SHAPES["mixtral-8x7b"], layers=2), ["--ep", "2", "--micro-batch-size", "2"]),
}


UNFUSED = ["--no-rope-fusion", "--no-gradient-accumulation-fusion", "--no-bias-swiglu-fusion"]
"""As the sample was when steps were measured first."""


class Timed(pretrain_gpt.Trainer):
    """Keeps what the interval timer says."""

    def log(self, iteration: int, elapsed: float, loss: float, grad_norm: float | None) -> None:
        times.append(elapsed)


times: list[float] = []


def write_kernels(trainer: Timed, path: Path) -> None:
    """Every rank makes the step; rank 0 writes."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        trainer.train_step()
        torch.cuda.synchronize()
    if dist.get_rank():
        return
    with gzip.open(path, "wt") as file:
        for event in work_of(profiler):
            row = [event.name(), event.device_resource_id(), event.start_ns(), event.duration_ns()]
            print(json.dumps(row), file=file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("--iters", type=int, default=12)
    parser.add_argument("--attention-backend", default="auto")
    parser.add_argument("--fused", action="store_true", help="rotary embeddings, SwiGLU and sums of gradients fused")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--kernels", type=Path)
    chosen = parser.parse_args()
    shape, words = RUNS[chosen.run]
    sys.argv[1:] = ["--te", "--use-distributed-optimizer", "--train-iters", str(chosen.iters), *words]
    sys.argv += [] if chosen.fused else UNFUSED
    sys.argv += ["--attention-backend", chosen.attention_backend]
    args = pretrain_gpt.parse()
    pretrain_gpt.initialize(args)
    if args.tp_comm_overlap:
        pretrain_gpt.initialize_userbuffers(args, shape)
    trainer = Timed(args, shape)
    trainer.train()
    about = {"ranks": dist.get_world_size(), "median_iter_s": median(times[len(times) // 3 :])}
    row = row_of(f"te_steps-{chosen.run}" + "-fused" * chosen.fused, times, **about)
    if dist.get_rank() == 0:
        print(json.dumps(row), flush=True)
        if chosen.out:
            with chosen.out.open("a") as file:
                print(json.dumps(row), file=file)
    if chosen.kernels:
        write_kernels(trainer, chosen.kernels)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

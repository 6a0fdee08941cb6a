"""Pipelines of two stages and more on two GPUs: 1F1B, interleaved in torch's loop and in that of 2024. Prints a JSON line.

    torchrun --nproc-per-node 2 -m validation.workloads.pipelines interleaved [--iters 12] [--out FILE]
    phantora trace --cluster 1x2xH100 -m validation.workloads.pipelines interleaved --iters 6

In torch 2.11's loop each message is a batch of its own, in order, on the stream that all share. In the loop of 2024, which
torch still has for schedules of several stages, what is sent and received between two computations is one batch.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import PipelineScheduleMulti

from llama import Llama, Shape, cross_entropy, random_batch
from validation.workloads.timing import row_of

SHAPE = Shape(dim=4096, layers=16, heads=32, kv_heads=8, ffn=14336, vocab=32000, seq=2048)


@dataclass(frozen=True)
class Run:
    chunks: int
    """Stages of a rank."""
    microbatches: int
    stepwise: bool = False
    """Steps of the loop of 2024."""


RUNS = {
    "1f1b": Run(1, 16),
    "interleaved": Run(2, 16),
    "interleaved-stepwise": Run(2, 16, stepwise=True),
    "interleaved-8": Run(8, 16),
    "interleaved-8-stepwise": Run(8, 16, stepwise=True),
}


class Stepwise(ScheduleInterleaved1F1B):
    _step_microbatches = PipelineScheduleMulti._step_microbatches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("--iters", type=int, default=12)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    run = RUNS[chosen.run]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    count = world * run.chunks
    each = SHAPE.layers // count
    models, stages = [], list[Any]()
    for number in range(rank, count, world):
        with device:
            model = Llama(SHAPE, number * each, (number + 1) * each)
        model.init_weights()
        models.append(model.to(torch.bfloat16))
        stages.append(PipelineStage(models[-1], number, count, device))
    schedule: Any
    if run.chunks == 1:
        schedule = Schedule1F1B(stages[0], run.microbatches, loss_fn=cross_entropy)
    else:
        kind = Stepwise if run.stepwise else ScheduleInterleaved1F1B
        schedule = kind(stages, run.microbatches, loss_fn=cross_entropy)
    parameters = [parameter for model in models for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    times = []
    for _ in range(chosen.iters):
        tokens, labels = random_batch(SHAPE, run.microbatches, device)
        torch.cuda.synchronize()
        dist.barrier()
        begin = time.perf_counter()
        if rank == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=labels, losses=[])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    row = row_of(f"pipelines-{chosen.run}", times, ranks=world, median_iter_s=median(times[len(times) // 3 :]))
    if rank == 0:
        print(json.dumps(row), flush=True)
        if chosen.out:
            with chosen.out.open("a") as file:
                print(json.dumps(row), file=file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

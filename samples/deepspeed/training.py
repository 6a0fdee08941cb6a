"""Common parts of this folder's scripts: DeepSpeed's settings and the timed loop."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.utils.logging import set_log_level_from_string

HERE = Path(__file__).parent
Settings = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser, config: str) -> None:
    parser.add_argument("--config", type=Path, default=HERE / config, help="DeepSpeed's JSON file")
    parser.add_argument("--stage", type=int, choices=(0, 1, 2, 3), help="ZeRO stage, in place of the file's")
    parser.add_argument("--batch", type=int, help="samples per GPU and micro-batch, in place of the file's")
    parser.add_argument("--accumulate", type=int, help="micro-batches per step, in place of the file's")
    parser.add_argument("--steps", type=int, default=5, help="timed optimizer steps, after one that is not timed")
    parser.add_argument("--local_rank", type=int, help="DeepSpeed's launcher gives it")
    parser.add_argument("--save", type=Path, help="write a checkpoint into this folder at the end")


def settings_of(args: argparse.Namespace) -> Settings:
    """The settings of the JSON file, changed by the command line. Shows DeepSpeed's own log."""
    set_log_level_from_string("info")
    settings: Settings = json.loads(args.config.read_text())
    if args.stage is not None:
        settings["zero_optimization"]["stage"] = args.stage
    if args.batch:
        settings["train_micro_batch_size_per_gpu"] = args.batch
    if args.accumulate:
        settings["gradient_accumulation_steps"] = args.accumulate
    return settings


def dtype_of(settings: Settings) -> torch.dtype:
    if settings.get("bf16", {}).get("enabled"):
        return torch.bfloat16
    return torch.float16 if settings.get("fp16", {}).get("enabled") else torch.float32


def train(
    engine: deepspeed.DeepSpeedEngine,
    args: argparse.Namespace,
    loss_of: Callable[[], torch.Tensor],
    unit: str,
    each: int,
) -> None:
    """Trains with `loss_of` (the loss of one micro-batch) and prints one JSON line; `each` sample is
    this many `unit`s (tokens, images)."""
    accumulate = engine.gradient_accumulation_steps()
    units = each * engine.train_micro_batch_size_per_gpu() * accumulate * engine.dp_world_size
    engine.train()

    def step() -> torch.Tensor:
        for _ in range(accumulate):
            loss = loss_of()
            engine.backward(loss)
            engine.step()
        return loss.detach()

    step()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(args.steps):
        loss = step()
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - begin) / args.steps
    parameters = sum(getattr(p, "ds_numel", p.numel()) for p in engine.module.parameters())
    if engine.global_rank == 0:
        report(seconds, units, unit, parameters, loss)
    if args.save:
        engine.save_checkpoint(args.save)
    torch.distributed.destroy_process_group()


def report(seconds: float, units: int, unit: str, parameters: int, loss: torch.Tensor) -> None:
    print(
        json.dumps(
            {
                "parameters": parameters,
                "world_size": torch.distributed.get_world_size(),
                "step_s": seconds,
                f"{unit}_per_s": units / seconds,
                "loss": loss.item(),
                "max_memory_allocated": torch.cuda.max_memory_allocated(),
                "max_memory_reserved": torch.cuda.max_memory_reserved(),
            }
        ),
        flush=True,
    )

"""The registry of training steps, and what they share: an optimizer's step, models of transformers, batches."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

GPU = torch.device("cuda")
VARYING = "varying"  # in a case's name: its steps differ, so a simulation runs all of them
Step = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """Builder of a step, and whether torch's default device is the GPU meanwhile."""

    build: Callable[[], Step]
    default_device: bool


CASES: dict[str, Case] = {}


def case(default_device: bool = True) -> Callable[[Callable[[], Step]], Callable[[], Step]]:
    """Registers a builder under its name."""

    def register(build: Callable[[], Step]) -> Callable[[], Step]:
        CASES[build.__name__] = Case(build, default_device)
        return build

    return register


def trained(
    model: nn.Module,
    loss_of: Callable[[], torch.Tensor],
    amp: torch.dtype | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    clip: float = 0.0,
) -> Step:
    """A step: forward under autocast to `amp`, backward (scaled for float16), clipping, optimizer (fused AdamW)."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    scaler = torch.amp.GradScaler("cuda", enabled=amp is torch.float16)

    def step() -> None:
        with torch.autocast("cuda", amp or torch.bfloat16, enabled=amp is not None):
            loss = loss_of()
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return step


def language(name: str, batch: int, length: int, bf16: bool = True, checkpoint: bool = False, **sizes: Any) -> tuple[nn.Module, Any]:
    """A causal language model of transformers with random weights, and its loss."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(name, use_cache=False, **sizes)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if bf16 else torch.float32).train()
    if checkpoint:
        model.gradient_checkpointing_enable()
    ids = torch.randint(5, 30000, (batch, length))
    return model, lambda: model(input_ids=ids, labels=ids).loss


def drawn(low: int, high: int, count: int = 64, seed: int = 5) -> itertools.cycle[int]:
    """Lengths between `low` and `high`, the same ones on every machine."""
    r = random.Random(seed)
    return itertools.cycle([r.randrange(low, high) for _ in range(count)])


def images(batch: int, side: int, last: bool = True) -> torch.Tensor:
    x = torch.randn(batch, 3, side, side, device=GPU)
    return x.contiguous(memory_format=torch.channels_last) if last else x


def classes(batch: int, count: int = 1000) -> torch.Tensor:
    return torch.randint(0, count, (batch,), device=GPU)


def classifier(model: nn.Module, batch: int, side: int, last: bool = True) -> Step:
    model = model.to(GPU).train()
    if last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x, y = images(batch, side, last), classes(batch)
    sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    return trained(model, lambda: F.cross_entropy(model(x).float(), y, label_smoothing=0.1), torch.bfloat16, sgd)

"""Times the steps of a program in this folder and prints one JSON line: median step, each step, peak memory.

    python -m validation.workloads.programs.MODULE [NAME] [ITERATIONS]                       # on a GPU
    phantora trace --cluster 1x1xH100 -m validation.workloads.programs.MODULE [NAME] [ITERATIONS]

NAME: a program of a module that has several. ITERATIONS: 12; 0 compiles only. STEPS_PROFILE=FILE adds a line to FILE:
the kernels of one more step, how many of each name and their ns.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F

from validation.gpu_work import by_name
from validation.workloads.timing import row_of, timed_afresh

WARM = 4
Step = Callable[[], object]


def decoder(layer: Callable[[], nn.Module], layers: int, width: int, words: int, bias: bool = False) -> nn.ModuleList:
    """The embedding of `words` words, a head (with `bias`), `layers` layers; in bfloat16."""
    embed, head = nn.Embedding(words, width), nn.Linear(width, words, bias)
    return nn.ModuleList([embed, head, *(layer() for _ in range(layers))]).bfloat16()


def hidden(model: nn.ModuleList, ids: torch.Tensor) -> torch.Tensor:
    """Output of the last layer of a `decoder` for words."""
    x: torch.Tensor = model[0](ids)
    for layer in model[2:]:
        x = layer(x)
    return x


def next_word(model: nn.ModuleList, ids: torch.Tensor) -> Callable[[], torch.Tensor]:
    """The cross-entropy of a `decoder` on words."""
    head = model[1]
    return lambda: F.cross_entropy(head(hidden(model, ids)).view(-1, head.out_features), ids.view(-1))


def trained(optimizer: torch.optim.Optimizer, loss_of: Callable[[], torch.Tensor]) -> Step:
    """A step: forward, backward, optimizer."""

    def step() -> None:
        loss_of().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def language(layer: Callable[[], nn.Module], layers: int, width: int, words: int, shape: tuple[int, int]) -> Step:
    """A step of a `decoder` on random words, `shape` being sequences and words: cross-entropy, fused AdamW."""
    torch.manual_seed(0)
    torch.set_default_device("cuda")
    model = decoder(layer, layers, width, words)
    ids = torch.randint(0, words, shape)
    return trained(fused_adamw(model), next_word(model, ids))


def fused_adamw(model: nn.Module, lr: float = 1e-4) -> torch.optim.Optimizer:
    """AdamW over all parameters that are trained, in one kernel."""
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr, fused=True)


def main(*programs: Callable[[], Step]) -> None:
    """Times the program that the command line names."""
    known = {program.__name__: program for program in programs}
    if not sys.argv[1:] or sys.argv[1] not in known:
        sys.exit(f"usage: {sys.argv[0]} NAME [ITERATIONS]; NAME is one of {', '.join(known)}")
    torch.manual_seed(0)
    timed(sys.argv[1], known[sys.argv[1]]())


def timed(run_id: str, step: Step, iterations: int = 12) -> None:
    """The last word of the command line, if it is a number, replaces `iterations`."""
    iterations = int(sys.argv[-1]) if sys.argv[-1].isdigit() else iterations
    times = timed_afresh(step, WARM if iterations else 2, iterations)
    if not iterations:
        return
    print(json.dumps(row_of(run_id, [round(t, 6) for t in times])), flush=True)
    if path := os.environ.get("STEPS_PROFILE"):
        with open(path, "a") as file:
            print(json.dumps({"run_id": run_id, "kernels": by_name(step, 160)}), file=file)

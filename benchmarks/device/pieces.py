"""How long the host takes to issue the forward pass, the backward pass and the optimizer of cases of varied_third.py.

    python benchmarks/device/pieces.py OUT.jsonl [--plain | --launches] [NAME ...]        # also under phantora trace

With --launches: how many kernels a step launches, as torch.profiler counts the driver's calls.
With --plain the default device is not set while steps are timed: its mode costs each call of torch some us. For cases
that name the device of all that they make (the first two).
Nothing waits for the GPU between the pieces, so their times are the host's own as long as the GPU's queue is not full.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import varied
import varied_third
from torch import nn
from torch.profiler import ProfilerActivity, profile

NAMES = ("diffusion_unet", "yolo_like", "convnext_timm", "vit_small_timm", "gpt2_small", "qwen_half")
PIECES = ("forward", "backward", "optimizer", "zero_grad", "done")
ITERS = 12
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")
CONVOLUTIONS = ("aten::cudnn_convolution", "aten::cudnn_convolution_transpose", "aten::convolution_backward")


def case(name: str) -> tuple[Any, Any, torch.optim.Optimizer]:
    """Of a case: what gives its loss, the dtype of autocast (None: off), the optimizer."""
    held: list[Any] = []

    def capture(model: nn.Module, loss_of: Any, amp: Any = None, optimizer: Any = None, clip: float = 0.0) -> Any:
        held.extend((model, loss_of, amp, optimizer or torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)))
        return lambda: None

    varied_third.trained = capture
    varied.CASES[name]()
    return held[1], held[2], held[3]


def launches(name: str) -> dict[str, Any]:
    """Calls of a step, by name."""
    loss_of, amp, optimizer = case(name)

    def step() -> None:
        with torch.autocast("cuda", amp or torch.bfloat16, enabled=amp is not None):
            loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()

    for _ in range(4):
        step()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        step()
    counts = {row.key: row.count for row in profiler.key_averages()}
    return {"case": name, **{call: counts.get(call, 0) for call in (*LAUNCHES, *CONVOLUTIONS)}}


def pieces(name: str) -> dict[str, Any]:
    """Medians of the pieces, ms."""
    loss_of, amp, optimizer = case(name)
    if "--plain" in sys.argv:
        torch.set_default_device(None)
    rows = []
    for _ in range(ITERS + 3):
        torch.cuda.synchronize()
        marks = [time.perf_counter()]
        with torch.autocast("cuda", amp or torch.bfloat16, enabled=amp is not None):
            loss = loss_of()
        marks.append(time.perf_counter())
        loss.backward()
        marks.append(time.perf_counter())
        optimizer.step()
        marks.append(time.perf_counter())
        optimizer.zero_grad(set_to_none=True)
        marks.append(time.perf_counter())
        torch.cuda.synchronize()
        marks.append(time.perf_counter())
        rows.append([(b - a) * 1e3 for a, b in itertools.pairwise(marks)])
    columns = list(zip(*rows[3:], strict=True))
    return {"case": name, **{p: round(statistics.median(c), 3) for p, c in zip(PIECES, columns, strict=True)},
            "least": [round(min(c), 3) for c in columns]}  # fmt: skip


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    measure = launches if "--launches" in sys.argv else pieces
    with Path(sys.argv[1]).open("a") as file:
        for name in [name for name in sys.argv[2:] if not name.startswith("--")] or NAMES:
            torch.set_default_device("cuda")
            line = json.dumps(measure(name))
            print(line, flush=True)
            file.write(line + "\n")
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

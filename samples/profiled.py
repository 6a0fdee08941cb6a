"""torch.profiler around a training step: a schedule, a trace for TensorBoard or Perfetto, a table of operators.

    phantora trace --cluster 1x1xH100 samples/profiled.py --output profile
    torchrun --nproc-per-node 1 samples/profiled.py                          # on a GPU

The table covers the profiled steps. The last line is a JSON object: each step's time in ms before the profiler and with
it, and the profiled GPU time in ms.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile, record_function, schedule, tensorboard_trace_handler


def times(step: Callable[[], None], steps: int, after: Callable[[], None] = lambda: None) -> list[float]:
    """Times of each step in ms, with a wait for the GPU; `after` is not part of it."""
    found = []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - begin) * 1e3)
        after()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--output", default="profile", help="folder of the trace")
    options = parser.parse_args()

    torch.cuda.set_device(0)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(options.width, options.width) for _ in range(options.layers))).cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randn(options.batch, options.width, device="cuda", dtype=torch.bfloat16)
    target = torch.randn_like(batch)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with record_function("forward"):
            loss = F.mse_loss(model(batch), target)
        with torch.cuda.nvtx.range("backward"):
            loss.backward()
        optimizer.step()

    plain = times(step, 6)
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=1, warmup=1, active=2, repeat=1),
        on_trace_ready=tensorboard_trace_handler(options.output),
        record_shapes=True,
    ) as profiler:
        profiled = times(step, 4, profiler.step)
    averages = profiler.key_averages()
    print(averages.table(sort_by="self_cuda_time_total", row_limit=10, max_name_column_width=60))
    on_gpu = [row for row in averages if row.device_type.name == "CUDA" and not row.is_user_annotation]
    kernels = sum(row.self_device_time_total for row in on_gpu) / 1e3
    rounded = {name: [round(value, 4) for value in found] for name, found in (("plain", plain), ("profiled", profiled))}
    print(json.dumps({"step_ms": rounded, "kernels_ms": kernels}))


if __name__ == "__main__":
    main()

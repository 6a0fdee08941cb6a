"""A training step of a small transformer, captured once as a CUDA graph and replayed. Runs unchanged on a real GPU.

    phantora trace --cluster 1x1xH100 samples/graphed.py --steps 5
    torchrun --nproc-per-node 1 samples/graphed.py                      # on a GPU

The last line is a JSON object: the step's time eager and replayed, in ms, peak memory, and the optimizer's own step
counter, which the graph advances.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F


def model_of(layers: int, width: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        width, width // 64, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).cuda().bfloat16()


def timed(step: Callable[[], object], steps: int) -> float:
    """Mean time of a step in ms over `steps`, the GPU waited for before and after."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / steps * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()

    torch.cuda.set_device(0)
    torch.manual_seed(0)
    model = model_of(options.layers, options.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=True)
    batch = torch.randn(options.batch, options.sequence, options.width, device="cuda", dtype=torch.bfloat16)
    target = torch.randn_like(batch)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.mse_loss(model(batch), target).backward()
        optimizer.step()

    # Capture needs what the first iterations set up (handles, workspaces, optimizer state), on a side stream.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
        eager = timed(step, options.steps)
    torch.cuda.current_stream().wait_stream(side)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        step()
    before = optimizer.state[next(model.parameters())]["step"].item()
    replayed = timed(graph.replay, options.steps)
    after = optimizer.state[next(model.parameters())]["step"].item()
    print(
        json.dumps(
            {
                "eager_ms": round(eager, 4),
                "replayed_ms": round(replayed, 4),
                "steps": after - before,
                "peak_mib": round(torch.cuda.max_memory_allocated() / 2**20, 1),
            }
        )
    )


if __name__ == "__main__":
    main()

"""Times the kernels of Mamba 2's scan and gated norm (mamba-ssm's Triton code), forward and backward.

    python -m validation.probes.mamba_scan FILE

One JSON line for each shape and kernel, `us` the median of its launches in three passes. The same command under
`phantora trace --cluster 1x1xH200` writes the simulated times. `mamba_parts` says how to install mamba-ssm.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from validation.workloads import mamba_parts

CHUNK = 128
SHAPES = [
    (1, 8192, 64, 64, 8, 128), (2, 8192, 64, 64, 8, 128), (1, 8192, 128, 64, 8, 128), (1, 8192, 64, 64, 4, 128),
    (1, 4096, 32, 64, 1, 128), (2, 4096, 48, 64, 8, 128), (1, 2048, 80, 64, 1, 128), (1, 8192, 128, 64, 4, 128),
]
"""Sequences, tokens, heads, their width, groups, state."""


def scan(sequences: int, tokens: int, heads: int, width: int, groups: int, state: int) -> None:
    """Forward and backward pass of one layer, without its projections and convolution."""
    from mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=True)

    given, steps = random(sequences, tokens, heads, width), random(sequences, tokens, heads)
    inputs, outputs = (random(sequences, tokens, groups, state) for _ in range(2))
    decay = (-torch.rand(heads, device="cuda")).requires_grad_()
    skip, bias = (random(heads, dtype=torch.float32) for _ in range(2))
    gate, weight = random(sequences, tokens, heads * width), random(heads * width)
    made = mamba_chunk_scan_combined(
        given, steps, decay, inputs, outputs, CHUNK, D=skip, dt_bias=bias, dt_softplus=True
    ).reshape(gate.shape)
    group = heads * width // groups
    made = rmsnorm_fn(made, weight, None, z=gate, group_size=group, norm_before_gate=False)
    made.backward(torch.ones_like(made))


def main() -> None:
    mamba_parts.install()
    with Path(sys.argv[1]).open("w") as out:
        for shape in SHAPES:
            for _ in range(2):
                scan(*shape)
            torch.cuda.synchronize()
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as taken:
                for _ in range(3):
                    scan(*shape)
                torch.cuda.synchronize()
            times = defaultdict(list)
            for event in taken.events():
                if event.device_type == torch.autograd.DeviceType.CUDA and event.name.startswith("_"):
                    times[event.name].append(event.device_time)
            for kernel, us in times.items():
                row = {"shape": shape, "kernel": kernel, "launches": len(us) // 3, "us": statistics.median(us)}
                out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()

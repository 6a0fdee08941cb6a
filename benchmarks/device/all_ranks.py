"""Kernel timelines of every rank of an unmodified training script, on one clock, on real GPUs. One .npz per rank.

    torchrun --standalone --nproc-per-node 4 benchmarks/device/all_ranks.py OUT train.py ARGS...

Records three steps (by the calls of optimizers' `step`) from the tenth on: `name` (index into `names`), `stream`, `start`
and `end` (ns, the host's wall clock, so ranks of one host compare), and `steps`, the host's times of the optimizer calls.
"""

from __future__ import annotations

import os
import runpy
import sys
import time

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

FIRST, COUNT = 10, 3
CUDA = [torch.profiler.ProfilerActivity.CUDA]


class Recorder:
    def __init__(self, out: str) -> None:
        self.out = f"{out}.{os.environ['RANK']}.npz"
        self.steps: list[int] = []
        self.profiler: torch.profiler.profile | None = None

    def __call__(self, *_: object) -> None:
        self.steps.append(time.time_ns())
        count = len(self.steps)
        if count == 3:  # the profiler's first start takes seconds
            with torch.profiler.profile(activities=CUDA):
                torch.cuda.synchronize()
        if count == FIRST:
            self.profiler = torch.profiler.profile(activities=CUDA)
            self.profiler.start()
        if count == FIRST + COUNT and self.profiler:
            torch.cuda.synchronize()
            self.profiler.stop()
            self.save()

    def save(self) -> None:
        assert self.profiler and self.profiler.profiler
        names: dict[str, int] = {}
        rows = [
            (names.setdefault(e.name(), len(names)), e.device_resource_id(), e.start_ns(), e.start_ns() + e.duration_ns())
            for e in self.profiler.profiler.kineto_results.events()
            if e.device_type() == torch.autograd.DeviceType.CUDA
        ]
        name, stream, start, end = np.array(rows, np.int64).T
        np.savez_compressed(self.out, name=name, stream=stream, start=start, end=end, names=np.array(list(names)), steps=self.steps)


if __name__ == "__main__":
    register_optimizer_step_post_hook(Recorder(sys.argv[1]))
    sys.argv = sys.argv[2:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")

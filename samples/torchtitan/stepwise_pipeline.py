"""Interleaved pipelines in torch's stepwise loop of 2024: all messages between two computations are one batch. In torch
2.11 each message is a batch of its own, in order, on one stream.

--experimental.custom_import stepwise_pipeline --parallelism.pipeline_parallel_schedule Interleaved1F1B

It adds the flavors of `layers` too.
"""

from __future__ import annotations

from typing import Any

import layers  # noqa: F401
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, ScheduleInterleaved1F1B


def stepwise(self: Any, *args: Any, **kwargs: Any) -> None:
    PipelineScheduleMulti._step_microbatches(self, *args, **kwargs)
    for stage in self._stages:  # of FSDP: the loop itself leaves it out in torch 2.11
        stage.perform_reduce_grad(self._n_microbatches if self.scale_grads else 1)


ScheduleInterleaved1F1B._step_microbatches = stepwise  # type: ignore[method-assign]

"""DeepSpeed: ``epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=..., CurrSamplesPerSec=25.7, ...``.

The step time follows from the batch of the configuration that DeepSpeed prints at its start.
"""

from __future__ import annotations

import re

from phantora.framework_logs.reader import NUMBER, LogReader
from phantora.units import GIB

_STEP = re.compile(rf"global_step=(\d+), RunningAvgSamplesPerSec=[\w.]+, CurrSamplesPerSec=({NUMBER})")
_MEMORY = re.compile(rf"MaxMemAllocated=({NUMBER})GB")
_BATCH = re.compile(r"\btrain_batch_size\s\.+\s(\d+)")


class DeepSpeed(LogReader):
    """Lines of ``deepspeed/utils/timer.py``."""

    framework = "DeepSpeed"

    def __init__(self) -> None:
        super().__init__()
        self._batch: float | None = None

    def take(self, line: str) -> None:
        """See :class:`LogReader`."""
        if batch := _BATCH.search(line):
            self._batch = float(batch[1])
        step = _STEP.search(line)
        if step is None:
            return
        samples = float(step[2])
        if self._batch and samples:
            self.add(int(step[1]), self._batch / samples, samples=samples)
        if memory := _MEMORY.search(line):
            self.peaks(float(memory[1]) * GIB, None)

"""Megatron-LM, Megatron-Bridge and NeMo: ``iteration 10/ 100 | ... | elapsed time per iteration (ms): 4647.8 | ...``.

The list of arguments at the start has the sequence length, from which tokens follow. Memory is printed once, by the
first rank of each model-parallel position.
"""

from __future__ import annotations

import re

from phantora.framework_logs.reader import NUMBER, LogReader

_STEP = re.compile(rf"\biteration\s+(\d+)/\s*\d+ \|.*?elapsed time per iteration \(ms\): ({NUMBER})")
_BATCH = re.compile(r"global batch size:\s*(\d+)")
_SEQUENCE = re.compile(r"^\s*(?:\d+:\s+)?seq_length\s\.+\s(\d+)\s*$")
_MEMORY = re.compile(rf"memory \(MB\) \|.*?max allocated: ({NUMBER}).*?max reserved: ({NUMBER})")
_MIB = 2**20


class Megatron(LogReader):
    """Lines of ``megatron/training/training.py``."""

    framework = "Megatron-LM"

    def __init__(self) -> None:
        super().__init__()
        self._sequence: float | None = None

    def take(self, line: str) -> None:
        """See :class:`LogReader`."""
        if step := _STEP.search(line):
            seconds = float(step[2]) / 1e3
            batch = _BATCH.search(line)
            samples = float(batch[1]) / seconds if batch and seconds else None
            tokens = samples * self._sequence if samples is not None and self._sequence else None
            self.add(int(step[1]), seconds, tokens_per_second=tokens, samples=samples)
        elif memory := _MEMORY.search(line):
            self.peaks(float(memory[1]) * _MIB, float(memory[2]) * _MIB)
        elif sequence := _SEQUENCE.match(line):
            self._sequence = float(sequence[1])

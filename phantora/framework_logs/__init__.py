"""Lines that training frameworks print about their steps: a real run without a trace, to compare a simulation with.

One module reads the lines of one framework; :mod:`reader` has their interface. :mod:`statistics` finds the steady step,
drift and outliers.

Process: terminal.
"""

from __future__ import annotations

from phantora.errors import PhantoraError
from phantora.framework_logs import deepspeed, huggingface, lightning, megatron, torchtitan
from phantora.framework_logs.lines import lines_of
from phantora.framework_logs.reader import LogReader, StepLog

READERS: tuple[type[LogReader], ...] = (
    megatron.Megatron,
    torchtitan.TorchTitan,
    deepspeed.DeepSpeed,
    huggingface.HuggingFace,
    lightning.Lightning,
)
"""The first that finds steps gets the file: Megatron-DeepSpeed prints lines of both."""


def read_step_log(path: str) -> StepLog:
    """The steps in the log at `path`. Raises PhantoraError for a file without lines of a known framework."""
    readers = [reader() for reader in READERS]
    for line in lines_of(path):
        for reader in readers:
            reader.take(line)
    for reader in readers:
        found = reader.found(path)
        if found.steps:
            return found
    known = ", ".join(reader.framework for reader in READERS)
    raise PhantoraError(f"{path} has no step lines of {known}")


__all__ = ["READERS", "StepLog", "read_step_log"]

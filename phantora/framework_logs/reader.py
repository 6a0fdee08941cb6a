"""Interface of a reader of one framework's lines."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

NUMBER = r"\d+(?:\.\d+)?"


@dataclass(frozen=True, kw_only=True)
class LoggedSteps:
    """Steps that one line is about."""

    last: int
    """Number of the last of them."""
    seconds: float
    """Time of one step."""
    tokens_per_second: float | None = None
    samples_per_second: float | None = None


@dataclass(frozen=True, kw_only=True)
class StepLog:
    """What a framework printed about a run."""

    path: str
    framework: str
    steps: tuple[LoggedSteps, ...]
    """In their order; of a job that was started again, those since its last start."""
    per_gpu: bool
    """Rates of tokens are those of one GPU."""
    allocated: int | None
    """Highest bytes of the caching allocator on a GPU."""
    reserved: int | None


class LogReader(ABC):
    """Takes the lines of a log one by one, and keeps what its framework printed."""

    framework: ClassVar[str]
    per_gpu: ClassVar[bool] = False

    def __init__(self) -> None:
        self.allocated: int | None = None
        self.reserved: int | None = None
        self._steps: list[LoggedSteps] = []

    @abstractmethod
    def take(self, line: str) -> None:
        """Reads a line of the log, of any program."""

    def finish(self) -> None:  # noqa: B027 (most readers have nothing left)
        """All lines are read."""

    def add(
        self, last: int, seconds: float, *, tokens_per_second: float | None = None, samples: float | None = None
    ) -> None:
        """Keeps steps; `samples` is a rate. Forgets earlier ones whose numbers are not below theirs."""
        if not (math.isfinite(seconds) and seconds > 0):
            return
        if self._steps and self._steps[-1].last >= last:
            self._steps.clear()
        self._steps.append(
            LoggedSteps(last=last, seconds=seconds, tokens_per_second=tokens_per_second, samples_per_second=samples)
        )

    def peaks(self, allocated: float | None, reserved: float | None) -> None:
        """Keeps memory in bytes, if it is the highest."""
        if allocated is not None and math.isfinite(allocated):
            self.allocated = max(self.allocated or 0, round(allocated))
        if reserved is not None and math.isfinite(reserved):
            self.reserved = max(self.reserved or 0, round(reserved))

    def found(self, path: str) -> StepLog:
        """What was read of the file `path`."""
        self.finish()
        return StepLog(
            path=path,
            framework=self.framework,
            steps=tuple(self._steps),
            per_gpu=self.per_gpu,
            allocated=self.allocated,
            reserved=self.reserved,
        )

"""Result of a run: its end, the reason, and the places of its results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Any

from phantora.errors import PhantoraError, Reason, reason_of


@dataclass(frozen=True)
class RunReport:
    """Facts about a run that need no reading of its log. Fields that are None or empty are left out of its JSON."""

    status: int
    """Exit status for a shell."""
    ranks: int
    _: KW_ONLY
    startup_seconds: float | None = None
    """Seconds from the start of the fork server to the first rank's fork."""
    wall_seconds: float | None = None
    processes: int | None = None
    """Ranks that were processes, in a folded run."""
    fold: str = ""
    error: str = ""
    log: str = ""
    rows: int | None = None
    timeline: tuple[str, ...] = ()
    """Files of the timeline."""
    simulated_seconds: float | None = None
    records: int | None = None
    simulator_cpu_seconds: float | None = None
    sleepers_released: int | None = None
    late_launches: int | None = None
    device_memory_bytes: int | None = None
    """Highest use of the fullest GPU, as nvidia-smi shows it."""
    host_memory_bytes: int | None = None
    """Highest use of the ranks of one host: pinned memory and large tensors."""
    host_pinned_bytes: int | None = None

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "", ())}


@dataclass(frozen=True)
class RunResult:
    """End of a run. A run that failed has a partial log."""

    status: int
    """0, or what a shell would see."""
    reason: Reason
    message: str
    """Why it failed, first in one line; "" if it did not."""
    log: Path | None
    """The event log; None if there is none, or none with rows."""
    report: RunReport

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps({**asdict(self), "log": str(self.log) if self.log else None})

    @classmethod
    def refused(cls, error: PhantoraError) -> RunResult:
        """Result of a run that could not begin."""
        report = RunReport(error.exit_status, 0, error=str(error))
        return cls(error.exit_status, reason_of(error), str(error), None, report)

    @classmethod
    def from_json(cls, text: str) -> RunResult:
        """Reads the text of :meth:`to_json`. Raises PhantoraError."""
        try:
            values = json.loads(text)
            report = RunReport(**{**values["report"], "timeline": tuple(values["report"]["timeline"])})
            log = Path(values["log"]) if values["log"] else None
            return cls(values["status"], Reason(values["reason"]), values["message"], log, report)
        except (ValueError, TypeError, KeyError) as error:
            raise PhantoraError(f"this is no result of a run: {error}") from error


def failure_line(message: str, reason: Reason) -> str:
    """The end of a run that failed in one line, with what to do: ``out of memory on rank 0 at train.py:7: 6.14 GiB
    asked, 530.00 MiB free; phantora fits says what it needs``."""
    more = "; phantora fits says what it needs" if reason == Reason.OUT_OF_MEMORY else ""
    if reason == Reason.HANG:
        more = _who_waits(message)
    return f"{first_line(message)}{more}"


def _who_waits(diagnosis: str) -> str:
    """``: rank 1 waits in all_reduce of 8 float32 (called at train.py:4), ...; not there: rank 0``."""
    waiting = (line.strip() for line in diagnosis.splitlines()[1:] if " waits " in line)
    first = next(waiting, "")
    return first and f": {first}"


def first_line(text: str) -> str:
    """First line of a message with details below."""
    return text.partition("\n")[0]


def few(ranks: Sequence[int]) -> str:
    """Ranks in words, the middle of many left out."""
    return ",".join(map(str, ranks)) if len(ranks) <= 12 else f"{','.join(map(str, ranks[:10]))},...,{ranks[-1]}"

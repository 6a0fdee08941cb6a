"""TorchTitan: ``[titan] DATE - root - INFO - step: 10  loss: ...  memory: 45.04GiB(47.40%)  tps: 8,128  tflops: ...``.

A line has no step time. It follows from the times at the begins of two lines.
"""

from __future__ import annotations

import re
from datetime import datetime

from phantora.framework_logs.reader import NUMBER, LogReader
from phantora.units import GIB

_STEP = re.compile(rf"(?<!validate )\bstep:\s*(\d+)\s+.*?\bmemory:\s*({NUMBER})GiB.*?\btps:\s*(\d[\d,]*)")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[,.](\d+)")


class TorchTitan(LogReader):
    """Lines of ``torchtitan/components/metrics.py``."""

    framework = "TorchTitan"
    per_gpu = True

    def __init__(self) -> None:
        super().__init__()
        self._before: tuple[int, datetime] | None = None

    def take(self, line: str) -> None:
        """See :class:`LogReader`."""
        step = _STEP.search(line)
        time = _TIME.search(line) if step else None
        if step is None or time is None:
            return
        self.peaks(None, float(step[2]) * GIB)
        number = int(step[1])
        try:
            at = datetime.fromisoformat(f"{time[1]}.{time[2][:6]:0<6}")
        except ValueError:
            return
        if self._before is not None and number > self._before[0]:
            seconds = (at - self._before[1]).total_seconds() / (number - self._before[0])
            self.add(number, seconds, tokens_per_second=float(step[3].replace(",", "")))
        self._before = (number, at)

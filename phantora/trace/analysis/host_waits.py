"""What the host does while its GPU waits for it, by annotation."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import numpy.typing as npt

from phantora.trace.analysis.annotations import MODULE, Annotations, innermost
from phantora.trace.analysis.occupancy import Idle
from phantora.trace.analysis.report import HostWait, Report, Times
from phantora.wire.names import CPU_OPERATORS

Ints = npt.NDArray[np.int64]
_WORTH_NAMING = 0.01  # of a step
BOUND = 0.1
"""Least share of a step in which the GPU idles for the host that makes the step host-bound."""
CPU = CPU_OPERATORS.removeprefix("phantora: ")
"""Begins the names of waits for operators on tensors of the CPU."""
_DATALOADER = "enumerate(DataLoader)"
_WHOLE = (_DATALOADER, "Optimizer.step")
"""Begins the names of annotations that say more than the operators on the CPU within them."""


class HostWaits:
    """Adds up over ranks and stretches."""

    def __init__(self, annotations: Annotations) -> None:
        self._names = annotations.names
        self._changes = [innermost(_telling(own, annotations.names)) for own in annotations.spans]
        self._sums: dict[int, float] = defaultdict(float)

    def add(self, position: int, idle: Idle) -> None:
        """Adds the waits of the rank at `position` for its host."""
        late = idle.causes["host"] | idle.causes["synchronisation"]
        start, end = idle.start[late], idle.end[late]
        moments, names = self._changes[position]
        first, last = np.searchsorted(moments, start, "right"), np.searchsorted(moments, end, "left")
        pieces = last - first + 1  # stretches of one annotation in each interval
        place = np.repeat(np.arange(len(start)), pieces)
        piece = np.arange(len(place)) - np.repeat(np.cumsum(pieces) - pieces, pieces) + first[place]
        edges = np.concatenate([[np.iinfo(np.int64).min], moments, [np.iinfo(np.int64).max]])
        length = np.minimum(end[place], edges[piece + 1]) - np.maximum(start[place], edges[piece])
        found, where = np.unique(names[piece], return_inverse=True)
        for name, time in zip(found.tolist(), np.bincount(where, length, len(found)).tolist(), strict=True):
            self._sums[name] += time

    def report(self, steady: Times) -> list[HostWait]:
        """The waits of a steady step, shared out as in all of them."""
        by_family: dict[str, float] = defaultdict(float)
        for name, time in self._sums.items():
            by_family[_family(self._names[name]) if name >= 0 else ""] += time
        whole = sum(by_family.values())
        found = [HostWait(name, steady.host * time / whole) for name, time in by_family.items() if time]
        return sorted(found, key=lambda wait: (-wait.time, wait.name))


def _telling(spans: list[tuple[int, int, int]], names: list[str]) -> list[tuple[int, int, int]]:
    """`spans` without modules, and without operators on the CPU within a DataLoader or an optimizer."""
    found, whole = [], 0
    for start, end, name in spans:
        if names[name].startswith(_WHOLE):
            whole = max(whole, end)
        if not names[name].startswith(MODULE) and not (names[name].startswith(CPU_OPERATORS) and start < whole):
            found.append((start, end, name))
    return found


def _family(name: str) -> str:
    """The name without what tells one call or one class from another."""
    if name.startswith(CPU_OPERATORS):
        return name.removeprefix("phantora: ")
    return "DataLoader" if name.startswith(_DATALOADER) else name.partition("#")[0]


def most_in(report: Report) -> str:
    """``, most in DataLoader``: the annotation that is open for most of the time; ``, most in CPU operators`` of
    several lines."""
    named = {wait.name: wait.time for wait in report.host_waits[:1] if wait.name}
    named[CPU] = sum(wait.time for wait in report.host_waits if wait.name.startswith(CPU))
    most = next((name for name, time in named.items() if time > 0.5 * report.steady.host), "")
    return f", most in {most}" if most else ""


def named_waits(report: Report) -> list[HostWait]:
    """The annotations that are open for a per cent of a step while the GPU waits for the host."""
    return [wait for wait in report.host_waits if wait.name and wait.time >= _WORTH_NAMING * report.steady.time]

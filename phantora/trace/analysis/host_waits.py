"""What the host does while its GPU waits for it: by annotation, and by long operator outside of annotations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from phantora.trace.analysis.annotations import MODULE, Annotations, innermost
from phantora.trace.analysis.occupancy import Idle
from phantora.trace.analysis.report import HostWait, Report, Times
from phantora.trace.reader import Log
from phantora.wire.names import CPU_OPERATORS

Ints = npt.NDArray[np.int64]
_WORTH_NAMING = 0.01  # of a step
BOUND = 0.1
"""Least share of a step in which the GPU idles for the host that makes the step host-bound."""
CPU = CPU_OPERATORS.removeprefix("phantora: ")
"""Begins the names of waits for operators on tensors of the CPU."""
_DATALOADER, _OPTIMIZER = "enumerate(DataLoader)", "Optimizer.step"
_WHOLE = (_DATALOADER, _OPTIMIZER)
"""Begins the names of annotations that say more than the operators on the CPU within them."""
ON_CPU = "Optimizer.step on the CPU"
_MOST_CPU = 3
_LONG = 100_000  # ns of an operator on the host that does more than launch
_SEEN = 50_000  # ns of a wait that such an operator may cause
_HALF = 0.5  # of the waits: more is named, by two names at most
_LARGEST = 1 / 3  # of the waits, that a part has to be named alone
_PART = 0.2  # of the waits, that a name has at least


class HostWaits:
    """Adds up over ranks and stretches."""

    def __init__(self, annotations: Annotations) -> None:
        self._names = [*annotations.names, ON_CPU]
        self._changes = [innermost(_telling(own, annotations.names)) for own in annotations.spans]
        self._sums: dict[int, float] = defaultdict(float)
        self._unnamed: dict[int, list[tuple[Ints, Ints]]] = defaultdict(list)  # starts and ends by rank position

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
        long = (names[piece] < 0) & (length >= _SEEN)
        begin = np.maximum(start[place], edges[piece])[long]
        self._unnamed[position].append((begin, begin + length[long]))

    def report(self, steady: Times, log: Log, ranks: Sequence[int]) -> list[HostWait]:
        """The waits of a steady step, shared out as in all of them. Operators of `log` are read where the step is
        host-bound."""
        by_family: dict[str, float] = defaultdict(float)
        for name, time in self._sums.items():
            by_family[_family(self._names[name]) if name >= 0 else ""] += time
        if steady.host >= BOUND * steady.time:
            for operator, time in self._operators(log, ranks).items():
                by_family[operator] += time
                by_family[""] -= time
        whole = sum(by_family.values())
        found = [HostWait(name, steady.host * time / whole) for name, time in by_family.items() if time]
        return sorted(found, key=lambda wait: (-wait.time, wait.name))

    def _operators(self, log: Log, ranks: Sequence[int]) -> dict[str, float]:
        """ns of waits outside of annotations in which a long operator runs on the host, as in a copy from or to memory
        that is not pinned."""
        waits = {position: own for position, own in self._unnamed.items() if any(len(start) for start, _ in own)}
        if not waits:
            return {}
        place = {rank: position for position, rank in enumerate(ranks)}
        spans: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for batch in log.batches(("rank", "start", "end", "op"), kinds=("operator",), ranks=ranks):
            long = (batch["end"] - batch["start"] >= _LONG) & (batch["op"] >= 0)
            columns = (batch[c][long].tolist() for c in ("rank", "start", "end", "op"))
            for rank, start, end, op in zip(*columns, strict=True):
                spans[place[rank]].append((start, end, op))
        names, found = log.words("op"), defaultdict[str, float](float)
        for position, own in waits.items():
            moments, open_ = innermost(sorted(spans[position], key=lambda span: (span[0], -span[1])))
            edges = np.append(moments, np.iinfo(np.int64).max)
            for start, end in zip(*(np.concatenate(side).tolist() for side in zip(*own, strict=True)), strict=True):
                at = int(np.searchsorted(moments, start, "right"))
                while start < end:
                    until = min(end, int(edges[at]))
                    if open_[at] >= 0:
                        found[names[int(open_[at])]] += until - start
                    start, at = until, at + 1
        return found


def _telling(spans: list[tuple[int, int, int]], names: list[str]) -> list[tuple[int, int, int]]:
    """`spans` without modules, and without operators on the CPU within a DataLoader or an optimizer. Optimizers most of
    whose time is such operators have the name `ON_CPU`, the one behind `names`."""
    found: list[tuple[int, int, int]] = []
    whole, on_cpu = 0, 0
    last = -1  # place of the optimizer step that is open
    for start, end, name in spans:
        if names[name].startswith(_WHOLE):
            whole = max(whole, end)
        if names[name].startswith(CPU_OPERATORS) and start < whole:
            if last >= 0 and start < found[last][1]:
                on_cpu += end - start
                begin, stop, _ = found[last]
                if on_cpu > _HALF * (stop - begin):
                    found[last] = (begin, stop, len(names))
            continue
        if names[name].startswith(_OPTIMIZER):
            last, on_cpu = len(found), 0
        if not names[name].startswith(MODULE):
            found.append((start, end, name))
    return found


def _family(name: str) -> str:
    """The name without what tells one call or one class from another."""
    if name.startswith(CPU_OPERATORS):
        return name.removeprefix("phantora: ")
    return "DataLoader" if name.startswith(_DATALOADER) else name.partition("#")[0]


def most_in(report: Report) -> str:
    """``, most in DataLoader``, ``, most in aten::copy_ and Optimizer.step on the CPU``: what runs most of the time;
    ``, most in CPU operators`` of several lines; ``, the largest part in DataLoader`` of a third or more."""
    whole = report.steady.host
    named = {wait.name: wait.time for wait in report.host_waits if wait.name}
    cpu = {name: time for name, time in named.items() if name.startswith(CPU)}
    if len(cpu) > 1 and max(cpu.values()) <= _HALF * whole:
        named = {name: time for name, time in named.items() if name not in cpu} | {CPU: sum(cpu.values())}
    parts = sorted((-time, name) for name, time in named.items() if time >= _PART * whole)[:2]
    if -sum(time for time, _ in parts) <= _HALF * whole:
        time, name = max(((time, name) for name, time in named.items()), default=(0.0, ""))
        largest = time >= max(_LARGEST * whole, whole - sum(named.values()))  # also than what has no name
        return f", the largest part in {name}" if whole and largest else ""
    return f", most in {' and '.join(name for _, name in parts)}"


def short_wait(name: str) -> str:
    """``topk at cpu.py:11`` of ``CPU operators at cpu.py:11 (topk)``; other names as they are."""
    place, _, operator = name.removeprefix(f"{CPU} at ").partition(" (")
    return f"{operator.rstrip(')')} at {place}" if name.startswith(CPU) and operator else name


def cpu_shares(report: Report) -> str:
    """``topk at cpu.py:11 24.7 %, cat at cpu.py:13 10.6 % of the step``: the operators on the CPU that hold up the GPU
    most; "" where they are less than half of its waits for the host."""
    found = [wait for wait in report.host_waits if wait.name.startswith(CPU)]
    if sum(wait.time for wait in found) <= _HALF * report.steady.host:
        return ""
    parts = []
    for wait in found[:_MOST_CPU]:
        parts.append(f"{short_wait(wait.name)} {100 * wait.time / report.steady.time:.1f} %")
    return f"{', '.join(parts)} of the step"


def named_waits(report: Report) -> list[HostWait]:
    """The annotations that are open for a per cent of a step while the GPU waits for the host."""
    return [wait for wait in report.host_waits if wait.name and wait.time >= _WORTH_NAMING * report.steady.time]

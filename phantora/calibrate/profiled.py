"""What a step of a log costs its host: of a real run from its profiler's rows, of a simulated run from its waits."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass

import numpy as np

from phantora.calibrate.exclusive import Ints, exclusive_times
from phantora.errors import PhantoraError
from phantora.trace.analysis.steps import Step, find_steps
from phantora.trace.reader import Log
from phantora.trace.schema import KIND_CODE

EVENT_NS = {"operator": 2100.0, "call": 1500.0, "python": 310.0}
"""ns that torch.profiler adds to the reference host's work, by kind of event: operators with shapes, calls of CUDA,
Python functions (``with_stack``), where a launch takes `LAUNCH_NS`. Fitted to one traced and untraced configuration of
twelve programs on two machines (torch 2.11, H100 and 4 H200): the untraced step follows from the traced one within
6.9 % on average, 19 % at most."""
LAUNCH_NS = 8000.0
_BY_PROFILER = "profiler"
_ENQUEUES = re.compile(r"Launch|Memset|Memcpy")
_LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC")
_WAITS = 8.0  # times the median of its name: a call that enqueues work and takes longer waits for a full queue


@dataclass(frozen=True)
class HostStep:
    """Host work of one rank in a steady step."""

    rank: int
    steps: int
    """Number of the steps that count."""
    work_ns: float
    """Median, without waits."""
    spread: float
    """Largest distance of a step from the median, relative."""
    events: dict[str, float]
    """Events of the profiler in a step, by kind."""
    launch_ns: float = LAUNCH_NS
    """Median of a launch's call under the profiler, whose cost goes with it."""

    @property
    def profiler_ns(self) -> float:
        """ns that the profiler adds on the reference host."""
        return self.launch_ns / LAUNCH_NS * sum(EVENT_NS[kind] * count for kind, count in self.events.items())


def real_step(log: Log) -> HostStep:
    """The step of an imported log's first rank. Raises PhantoraError where the log has no whole step."""
    try:
        found = find_steps(log, by=_BY_PROFILER)
    except PhantoraError:
        found = find_steps(log)
    rank = min(found.of_rank)
    steps = [step for step in found.of_rank[rank] if step.host_time is not None]
    if not steps:
        raise PhantoraError(
            f"{log.path}: no whole step on the host; profile two steps with schedule(wait=1, warmup=1, active=2) "
            "and call prof.step() at the end of each"
        )
    waits, launch_ns = _calls(log, rank, steps)
    work, spread = _median([float(step.host_time or 0) - wait for step, wait in zip(steps, waits, strict=True)])
    return HostStep(rank, len(steps), work, spread, _events(log, rank, steps), launch_ns)


def simulated_step(log: Log, rank: int) -> HostStep:
    """The same rank's step of a simulated run. Raises PhantoraError where it has no steady step."""
    found = find_steps(log, ranks=[rank])
    if rank not in found.of_rank:
        raise PhantoraError(f"{log.path}: no rank {rank}; simulate the number of GPUs of the real run")
    steady = found.steady()
    steps = [step for step in found.of_rank[rank] if step.host_time is not None and step.number in steady]
    if not steps:
        raise PhantoraError(f"{log.path}: no steady step on the host of rank {rank}; simulate four steps or more")
    work, spread = _median([float(step.host_time or 0) for step in steps])
    return HostStep(rank, len(steps), work, spread, {})


def operator_times(log: Log) -> dict[str, tuple[int, float]]:
    """By name of an operator of the first rank, how often it ran and the median ns of its own code."""
    columns = ("kind", "start", "end", "name", "stream", "rank")
    parts: dict[str, list[Ints]] = {column: [] for column in columns}
    for batch in log.batches(columns, kinds=("operator", "call", "sync")):
        for column in columns:
            parts[column].append(batch[column])
    if not parts["start"]:
        return {}
    of_rank = np.concatenate(parts.pop("rank"))
    first = of_rank == of_rank.min()
    kind, start, end, name, stream = (np.concatenate(part)[first] for part in parts.values())
    own = exclusive_times(start, end, stream)
    operator = kind == KIND_CODE["operator"]
    words = log.words("name")
    found: dict[str, tuple[int, float]] = {}
    for number in np.unique(name[operator]).tolist():
        times = own[operator & (name == number)]
        found[words[number]] = (len(times), float(np.median(times)))
    return found


def _calls(log: Log, rank: int, steps: list[Step]) -> tuple[list[float], float]:
    """ns of each step in which calls waited for room in CUDA's queue, and the median ns of a launch's call."""
    names, starts, lengths = [], [], []
    for batch in log.batches(("name", "start", "end"), kinds=("call",), ranks=[rank]):
        names.append(batch["name"])
        starts.append(batch["start"])
        lengths.append(batch["end"] - batch["start"])
    if not names:
        return [0.0] * len(steps), LAUNCH_NS
    name, start, length = (np.concatenate(part) for part in (names, starts, lengths))
    words, excess = log.words("name"), np.zeros(len(name))
    for number in np.unique(name).tolist():
        if _ENQUEUES.search(words[number]):
            own = name == number
            usual = float(np.median(length[own]))
            excess[own] = np.where(length[own] > _WAITS * usual, length[own] - usual, 0.0)
    launches = np.isin(name, [number for number, word in enumerate(words) if word in _LAUNCHES])
    waits = [float(excess[(start >= step.host[0]) & (start <= step.host[1])].sum()) for step in steps]
    return waits, float(np.median(length[launches])) if launches.any() else LAUNCH_NS


def _median(times: list[float]) -> tuple[float, float]:
    middle = statistics.median(times)
    return middle, max(abs(time / middle - 1) for time in times) if middle else 0.0


def _events(log: Log, rank: int, steps: list[Step]) -> dict[str, float]:
    """Events of the profiler in a step, on average."""
    counts = dict.fromkeys(EVENT_NS, 0.0)
    for batch in log.batches(("kind", "start"), kinds=tuple(EVENT_NS), ranks=[rank]):
        for begin, end in (step.host for step in steps):
            inside = (batch["start"] >= begin) & (batch["start"] <= end)
            for kind in counts:
                counts[kind] += float((inside & (batch["kind"] == KIND_CODE[kind])).sum())
    return {kind: count / len(steps) for kind, count in counts.items()}

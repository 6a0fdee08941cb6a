"""Host time of a log's step: of a real run from its profiler's rows, of a simulated run from its waits."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from phantora.calibration.exclusive import Ints, exclusive_times
from phantora.errors import PhantoraError
from phantora.trace.analysis.steps import Step, find_steps
from phantora.trace.reader import Log
from phantora.trace.schema import COMMUNICATION_KINDS, DEVICE_KINDS, KIND_CODE

EVENT_NS = {"operator": 2100.0, "bare": 1000.0, "call": 1500.0, "python": 310.0}
"""ns that torch.profiler adds to the reference host's work where a launch takes `LAUNCH_NS`, by kind of event.

Kinds: operators with recorded arguments, operators and autograd nodes without, calls of CUDA, Python functions
(``with_stack``). Fitted to one traced and untraced configuration of twelve programs on two machines (torch 2.11, H100
and 4 H200): the untraced step follows from the traced one within 6 % on average, 19 % at most."""
LAUNCH_NS = 8000.0
_BY_PROFILER = "profiler"
_ENQUEUES = re.compile(r"Launch|Memset|Memcpy")
_LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC")
_FIRST_STEPS = 2  # of a simulated run: they load code
_EQUAL = 0.02  # by which steps that repeat may differ in launches
_WAITS = 8.0  # times the median of its name: a call that enqueues work and takes longer waits for a full queue


@dataclass(frozen=True, kw_only=True)
class HostStep:
    """Host work of one rank in a steady step."""

    rank: int
    steps: int
    """Number of the steps that count."""
    work_ns: float
    """Median, without waits."""
    spread: float
    """Largest distance of a step from the median, relative."""
    gpu_ns: float
    """Shortest step on the GPU. In a host-bound run with collectives it is the step of the slowest host."""
    launches: int
    """Kernels, copies, memsets and collectives in a step, median."""
    communicates: bool = False
    """The step contains collectives or sends."""
    computing_ns: float = 0.0
    """Time of the other kernels and copies in a step."""
    events: Mapping[str, float] = field(default_factory=dict)
    """Events of the profiler in a step, by kind."""
    launch_ns: float = LAUNCH_NS
    """Median of a launch's call under the profiler, whose cost goes with it."""

    @property
    def profiler_ns(self) -> float:
        """ns that the profiler adds on the reference host."""
        return self.launch_ns / LAUNCH_NS * sum(EVENT_NS[kind] * count for kind, count in self.events.items())


def real_steps(log: Log) -> list[HostStep]:
    """The step of each rank of an imported log. Raises PhantoraError where no rank has a whole step."""
    try:
        found = find_steps(log, by=_BY_PROFILER)
    except PhantoraError:
        found = find_steps(log)
    steps = {rank: [step for step in own if step.host_time is not None] for rank, own in found.of_rank.items()}
    if not any(steps.values()):
        raise PhantoraError(
            f"{log.path}: no whole step on the host; profile two steps with schedule(wait=1, warmup=1, active=2) "
            "and call prof.step() at the end of each"
        )
    return [_real_step(log, rank, own) for rank, own in sorted(steps.items()) if own]


def _real_step(log: Log, rank: int, steps: list[Step]) -> HostStep:
    waits, launch_ns = _calls(log, rank, steps)
    work, spread = _median([float(step.host_time or 0) - wait for step, wait in zip(steps, waits, strict=True)])
    launches = round(statistics.median(_launches(log, rank, steps)))
    communicates = any(len(batch) for batch in log.batches(("rank",), kinds=COMMUNICATION_KINDS, ranks=[rank]))
    gpu_ns = float(min(step.end - step.start for step in steps))
    return HostStep(
        rank=rank,
        steps=len(steps),
        work_ns=work,
        spread=spread,
        gpu_ns=gpu_ns,
        launches=launches,
        communicates=communicates,
        computing_ns=_computing_ns(log, rank, steps),
        events=_events(log, rank, steps),
        launch_ns=launch_ns,
    )


def simulated_step(log: Log, rank: int, launches: int) -> HostStep:
    """A step of `rank` in a simulated run, with about as many `launches` as the real step: several optimizer steps
    can be one step of the profiler. Raises PhantoraError where the run is too short."""
    found = find_steps(log, ranks=[rank])
    steps = [step for step in found.of_rank.get(rank, ()) if step.host_time is not None]
    if rank not in found.of_rank:
        raise PhantoraError(f"{log.path}: no rank {rank}; simulate the number of GPUs of the real run")
    counts = _launches(log, rank, steps)
    joined = joined_steps(counts, launches)
    begins = range(len(steps) - joined, _FIRST_STEPS * joined - 1, -joined)
    groups = [steps[begin : begin + joined] for begin in begins]
    if not groups:
        raise PhantoraError(f"{log.path}: no steady step on the host of rank {rank}; simulate four steps or more")
    work, spread = _median([float(sum(step.host_time or 0 for step in group)) for group in groups])
    gpu_ns = statistics.median(float(group[-1].end - group[0].start) for group in groups)
    own = round(statistics.median(sum(counts[begin : begin + joined]) for begin in begins))
    return HostStep(rank=rank, steps=len(groups), work_ns=work, spread=spread, gpu_ns=gpu_ns, launches=own)


def joined_steps(counts: list[int], launches: int) -> int:
    """Number of consecutive steps of `counts` launches that repeat and together have about `launches`."""
    totals = np.concatenate([[0], np.cumsum(counts)])
    best, distance = 1, math.inf
    for joined in range(1, len(counts) // 2 + 1):
        sums = (totals[joined:] - totals[:-joined])[_FIRST_STEPS:]
        if not len(sums) or sums.max() > (1 + _EQUAL) * sums.min():
            continue
        if abs(float(sums.mean()) / max(1, launches) - 1) < distance:
            best, distance = joined, abs(float(sums.mean()) / max(1, launches) - 1)
    return best


def _launches(log: Log, rank: int, steps: list[Step]) -> list[int]:
    """Work launched on the GPU in each step."""
    found = [np.zeros(0, np.int64)]
    found += [batch["launch"] for batch in log.batches(("launch",), kinds=DEVICE_KINDS, ranks=[rank])]
    at = np.sort(np.concatenate(found))
    return [int(np.searchsorted(at, step.host[1], "right") - np.searchsorted(at, step.host[0])) for step in steps]


def _computing_ns(log: Log, rank: int, steps: list[Step]) -> float:
    """ns of kernels and copies in a step, without communication, on average."""
    total = 0.0
    kinds = tuple(kind for kind in DEVICE_KINDS if kind not in COMMUNICATION_KINDS)
    for batch in log.batches(("launch", "start", "end"), kinds=kinds, ranks=[rank]):
        for begin, end in (step.host for step in steps):
            inside = (batch["launch"] >= begin) & (batch["launch"] <= end)
            total += float((batch["end"] - batch["start"])[inside].sum())
    return total / len(steps)


def operator_times(log: Log) -> dict[str, tuple[int, float]]:
    """Operators of the first rank by name: number of calls, and median ns of the operator's own code."""
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
    described = np.array([bool(word) for word in log.words("shape")] + [False])
    counts = dict.fromkeys(EVENT_NS, 0.0)
    for batch in log.batches(("kind", "start", "shape"), kinds=("operator", "call", "python"), ranks=[rank]):
        operator = batch["kind"] == KIND_CODE["operator"]
        of_kind = {kind: batch["kind"] == KIND_CODE[kind] for kind in ("call", "python")}
        of_kind |= {"operator": operator & described[batch["shape"]], "bare": operator & ~described[batch["shape"]]}
        for begin, end in (step.host for step in steps):
            inside = (batch["start"] >= begin) & (batch["start"] <= end)
            for kind, own in of_kind.items():
                counts[kind] += float((inside & own).sum()) / len(steps)
    return counts

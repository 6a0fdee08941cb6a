"""Where the steps of a run lie on each rank.

Three ways, the first that all ranks of the log offer:
- ``ProfilerStep#k`` annotations, which torch.profiler makes;
- ``Optimizer.step#...`` annotations, which every torch optimizer makes; a step ends when the GPU has
  done all that was launched until the annotation's end, since the host runs ahead of it by a
  changing distance; optimizers in a row with no kernel launched between them count as one;
- the whole run as one step.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phantora.trace.reader import Log

_PROFILER = re.compile(r"ProfilerStep\s*#\s*(\d+)")
_OPTIMIZER = "Optimizer.step#"


@dataclass(frozen=True)
class Step:
    """One step of one rank: times in ns."""

    number: int
    name: str
    start: int
    end: int


@dataclass(frozen=True)
class Steps:
    source: str
    """``profiler``, ``optimizer`` or ``run``."""
    of_rank: dict[int, list[Step]]

    def numbers(self) -> list[int]:
        return sorted({step.number for steps in self.of_rank.values() for step in steps})


Span = tuple[int, int, str]


def find_steps(log: Log, ranks: Collection[int] | None = None) -> Steps:
    """The steps of `ranks` (all without)."""
    extent = _extents(log, ranks)
    names = log.words("name")
    profiler = np.array([_PROFILER.match(name) is not None for name in names] + [False])
    optimizer = np.array([name.startswith(_OPTIMIZER) for name in names] + [False])
    profiled: dict[int, list[Span]] = {rank: [] for rank in extent}
    optimized: dict[int, list[Span]] = {rank: [] for rank in extent}
    for batch in log.batches(("rank", "name", "start", "end"), kinds=("annotation",), ranks=ranks):
        for marks, spans in ((profiler, profiled), (optimizer, optimized)):
            for row in np.flatnonzero(marks[batch["name"]]):
                span = (int(batch["start"][row]), int(batch["end"][row]), names[batch["name"][row]])
                spans[int(batch["rank"][row])].append(span)
    if extent and all(profiled.values()):
        return Steps("profiler", {rank: _from_profiler(spans) for rank, spans in profiled.items()})
    if extent and all(optimized.values()):
        busy = _launches_between(log, optimized)
        done = _completions(log, optimized)
        found = {rank: _from_optimizer(extent[rank][0], done[rank], busy[rank]) for rank in extent}
        if all(found.values()):
            return Steps("optimizer", found)
    return Steps("run", {rank: [Step(1, "run", start, end)] for rank, (start, end) in extent.items()})


def _extents(log: Log, ranks: Collection[int] | None) -> dict[int, tuple[int, int]]:
    """First start and last end of each rank."""
    extent: dict[int, tuple[int, int]] = {}
    for batch in log.batches(("rank", "start", "end"), ranks=ranks):
        present, rank = np.unique(batch["rank"], return_inverse=True)
        first = np.full(len(present), np.iinfo(np.int64).max)
        last = np.full(len(present), np.iinfo(np.int64).min)
        np.minimum.at(first, rank, batch["start"])
        np.maximum.at(last, rank, batch["end"])
        for r, a, b in zip(present.tolist(), first.tolist(), last.tolist(), strict=True):
            before = extent.get(r, (a, b))
            extent[r] = (min(a, before[0]), max(b, before[1]))
    return dict(sorted(extent.items()))


def _from_profiler(spans: list[Span]) -> list[Step]:
    steps: list[Step] = []
    for start, end, name in sorted(spans):
        match = _PROFILER.match(name)
        assert match is not None
        if not steps or start >= steps[-1].end:  # a nested second profiler adds nothing
            steps.append(Step(int(match[1]), f"ProfilerStep#{match[1]}", start, end))
    return steps


def _launches_between(log: Log, spans: dict[int, list[Span]]) -> dict[int, npt.NDArray[np.bool_]]:
    """For each rank, whether a kernel was launched between one optimizer's end and the next's start."""
    busy: dict[int, npt.NDArray[np.bool_]] = {}
    gaps: dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = {}
    for rank, own in spans.items():
        ordered = sorted(own)
        gaps[rank] = (
            np.array([end for _, end, _ in ordered[:-1]], np.int64),
            np.array([start for start, _, _ in ordered[1:]], np.int64),
        )
        busy[rank] = np.zeros(len(ordered) - 1, bool)
    if not any(len(b) for b in busy.values()):
        return busy
    for batch in log.batches(("rank", "launch"), kinds=("kernel", "collective", "sendrecv"), ranks=spans):
        order = np.argsort(batch["rank"], kind="stable")
        present, first = np.unique(batch["rank"][order], return_index=True)
        for rank, launches in zip(present.tolist(), np.split(batch["launch"][order], first[1:]), strict=True):
            if not busy[rank].all():
                launches = np.sort(launches)
                lower, upper = gaps[rank]
                count = np.searchsorted(launches, upper, "right") - np.searchsorted(launches, lower, "left")
                busy[rank] |= count > 0
    return busy


_DEVICE = ("kernel", "memcpy", "memset", "collective", "sendrecv")


def _completions(log: Log, spans: dict[int, list[Span]]) -> dict[int, list[int]]:
    """For each rank and span, in order of start: when all that was launched until its end was done."""
    ends = {rank: np.array([end for _, end, _ in sorted(own)], np.int64) for rank, own in spans.items()}
    latest = {rank: np.zeros(len(own) + 1, np.int64) for rank, own in ends.items()}
    for batch in log.batches(("rank", "launch", "end"), kinds=_DEVICE, ranks=spans):
        for rank in np.unique(batch["rank"]).tolist():
            own = batch["rank"] == rank
            np.maximum.at(latest[rank], np.searchsorted(ends[rank], batch["launch"][own]), batch["end"][own])
    return {rank: np.maximum(own, np.maximum.accumulate(latest[rank])[:-1]).tolist() for rank, own in ends.items()}


def _from_optimizer(begin: int, ends: list[int], busy: npt.NDArray[np.bool_]) -> list[Step]:
    steps: list[Step] = []
    for i, end in enumerate(ends):
        if i < len(busy) and not busy[i]:
            continue
        if end > begin:
            steps.append(Step(len(steps) + 1, f"step {len(steps) + 1}", begin, end))
            begin = end
    return steps

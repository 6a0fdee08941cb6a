"""Where the steps of a run lie on each rank.

Three ways, the first that all ranks of the log offer:
- ``ProfilerStep#k`` annotations, which torch.profiler makes;
- ``Optimizer.step#...`` annotations, which every torch optimizer makes; a step ends when the GPU has
  done all that was launched until the annotation's end, since the host runs ahead of it by a
  changing distance; optimizers in a row with no backward pass between them count as one (Megatron's
  for dense and expert parameters, DeepSpeed's sub-groups, Muon and AdamW);
- the whole run as one step.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from phantora.trace.reader import Log

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

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


class Mark(NamedTuple):
    """An annotation that says where a step ends or lies."""

    start: int
    end: int
    name: str
    thread: int


def find_steps(log: Log, ranks: Collection[int] | None = None) -> Steps:
    """The steps of `ranks` (all without)."""
    extent = _extents(log, ranks)
    names = log.words("name")
    profiler = np.array([_PROFILER.match(name) is not None for name in names] + [False])
    optimizer = np.array([name.startswith(_OPTIMIZER) for name in names] + [False])
    profiled: dict[int, list[Mark]] = {rank: [] for rank in extent}
    optimized: dict[int, list[Mark]] = {rank: [] for rank in extent}
    for batch in log.batches(("rank", "stream", "name", "start", "end"), kinds=("annotation",), ranks=ranks):
        for marks, spans in ((profiler, profiled), (optimizer, optimized)):
            for row in np.flatnonzero(marks[batch["name"]]):
                start, end, thread = (int(batch[column][row]) for column in ("start", "end", "stream"))
                spans[int(batch["rank"][row])].append(Mark(start, end, names[batch["name"][row]], thread))
    if extent and all(profiled.values()):
        return Steps("profiler", {rank: _from_profiler(spans) for rank, spans in profiled.items()})
    if extent and all(optimized.values()):
        busy = _passes_between(log, optimized)
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


def _from_profiler(spans: list[Mark]) -> list[Step]:
    steps: list[Step] = []
    for mark in sorted(spans):
        match = _PROFILER.match(mark.name)
        assert match is not None
        if not steps or mark.start >= steps[-1].end:  # a nested second profiler adds nothing
            steps.append(Step(int(match[1]), f"ProfilerStep#{match[1]}", mark.start, mark.end))
    return steps


def _passes_between(log: Log, spans: dict[int, list[Mark]]) -> dict[int, Mask]:
    """For each rank, whether a backward pass ran between one optimizer's end and the next's (Lightning has the
    optimizer call it): operators of another thread than the optimizer's, as autograd has its own. Of a rank
    whose operators all ran in one thread, whether a kernel was launched before the next began."""
    busy: dict[int, Mask] = {}
    gaps: dict[int, tuple[Ints, Ints, Ints]] = {}
    thread: dict[int, int] = {}
    for rank, own in spans.items():
        ordered = sorted(own)
        gaps[rank] = (
            np.array([mark.end for mark in ordered[:-1]], np.int64),
            np.array([mark.start for mark in ordered[1:]], np.int64),
            np.array([mark.end for mark in ordered[1:]], np.int64),
        )
        thread[rank] = ordered[0].thread
        busy[rank] = np.zeros(len(ordered) - 1, bool)
    single = {rank for rank, own in busy.items() if len(own)}
    for rank, moments in _moments(log, "start", ("operator",), sorted(single), thread):
        ended, _, end = gaps[rank]
        busy[rank] |= _any_between(moments, ended, end)
        single.discard(rank)
    for rank, moments in _moments(log, "launch", ("kernel", "collective", "sendrecv"), sorted(single)):
        ended, start, _ = gaps[rank]
        busy[rank] |= _any_between(moments, ended, start)
    return busy


def _moments(
    log: Log, column: str, kinds: Collection[str], ranks: Collection[int], without: dict[int, int] | None = None
) -> Iterator[tuple[int, Ints]]:
    """By batch and rank the values of `column`, ascending; not of the thread that `without` names by rank."""
    if not ranks:
        return
    own = np.full(max(ranks) + 1, -1)
    for rank, thread in (without or {}).items():
        if rank < len(own):
            own[rank] = thread
    for batch in log.batches(("rank", "stream", column), kinds=kinds, ranks=ranks):
        kept = np.flatnonzero(batch["stream"] != own[batch["rank"]]) if without else np.arange(len(batch))
        if not len(kept):
            continue
        order = kept[np.argsort(batch["rank"][kept], kind="stable")]
        present, first = np.unique(batch["rank"][order], return_index=True)
        for rank, moments in zip(present.tolist(), np.split(batch[column][order], first[1:]), strict=True):
            yield rank, np.sort(moments)


def _any_between(moments: Ints, lower: Ints, upper: Ints) -> Mask:
    count = np.searchsorted(moments, upper, "right") - np.searchsorted(moments, lower, "left")
    return np.asarray(count > 0)


_DEVICE = ("kernel", "memcpy", "memset", "collective", "sendrecv")


def _completions(log: Log, spans: dict[int, list[Mark]]) -> dict[int, list[int]]:
    """For each rank and span, in order of start: when all that was launched until its end was done."""
    ends = {rank: np.array([mark.end for mark in sorted(own)], np.int64) for rank, own in spans.items()}
    latest = {rank: np.zeros(len(own) + 1, np.int64) for rank, own in ends.items()}
    for batch in log.batches(("rank", "launch", "end"), kinds=_DEVICE, ranks=spans):
        for rank in np.unique(batch["rank"]).tolist():
            own = batch["rank"] == rank
            np.maximum.at(latest[rank], np.searchsorted(ends[rank], batch["launch"][own]), batch["end"][own])
    return {rank: np.maximum(own, np.maximum.accumulate(latest[rank])[:-1]).tolist() for rank, own in ends.items()}


def _from_optimizer(begin: int, ends: list[int], busy: Mask) -> list[Step]:
    steps: list[Step] = []
    for i, end in enumerate(ends):
        if i < len(busy) and not busy[i]:
            continue
        if end > begin:
            steps.append(Step(len(steps) + 1, f"step {len(steps) + 1}", begin, end))
            begin = end
    return steps

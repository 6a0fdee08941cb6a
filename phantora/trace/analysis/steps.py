"""Places of a run's steps on each rank's GPU, and the steps that represent the others.

A step is the GPU work that one iteration of the loop launched, whatever the host does meanwhile. It ends when the last
of this work ends and begins where the step before ended, so that a step that follows another is as long as the loop
takes for an iteration; the first, and one after other work, begin with their own first kernel.
``iterations.py`` and ``repetition.py`` find the iterations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from phantora.errors import PhantoraError, known_names
from phantora.trace.analysis.backward_passes import by_backward
from phantora.trace.analysis.faults import touched, windows
from phantora.trace.analysis.iterations import (
    Iteration,
    Iterations,
    Mark,
    Marks,
    by_annotation,
    by_dataloader,
    by_optimizer,
    by_profiler,
    read_marks,
    repeated_annotations,
)
from phantora.trace.analysis.loader import loader_of
from phantora.trace.analysis.outlier_steps import MORE_WORK, WAITS, Content, notes, recurring_waits, work_rises
from phantora.trace.analysis.prefetched import prefetched
from phantora.trace.analysis.repetition import by_repetition
from phantora.trace.analysis.settled_steps import SETTLING, Settled, settle
from phantora.trace.reader import Log
from phantora.trace.schema import DEVICE_KINDS, KIND_CODE, OPTIMIZER_STEP
from phantora.wire.names import COMPILING, TUNING

Ints = npt.NDArray[np.int64]

SOURCES = ("optimizer", "profiler", "dataloader", "annotation", "backward", "pattern", "run")
_COLUMNS = ("kind", "rank", "stream", "name", "start", "end", "launch", "op", "shape", "cls", "bytes")
_ENOUGH = 0.5  # of the GPUs' work must lie in steps, or other iterations are looked for
_ANNOTATION = re.compile(r"annotation[ :=](.+)")
PRODUCTS = ("gemm", "attention", "convolution")  # classes that every forward pass of a network has
BACKWARD = re.compile(r"backward", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of one rank: times in ns."""

    number: int
    name: str
    start: int
    end: int
    note: str = ""
    """Why it does not stand for the others (``outlier_steps.py``); empty for a steady one."""
    begin: int | None = None
    """Start of its iteration on the host; None for the time of the GPU."""
    until: int | None = None
    host_time: int | None = None
    """ns that the host worked for it, waits left out; None if its iteration has no end."""

    @property
    def host(self) -> tuple[int, int]:
        """The stretch of the host's time, both ends included."""
        return (self.start if self.begin is None else self.begin, self.end if self.until is None else self.until)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The steps of every rank, and their source."""

    source: str
    """``optimizer``, ``profiler``, ``dataloader``, ``annotation NAME``, ``backward``, ``pattern``, ``run`` or
    ``time``."""
    of_rank: dict[int, list[Step]]
    covered: float = 1.0
    """Share of the GPUs' busy time that lies in steps."""
    predicted: bool = False
    """The run ends before its GPUs' power limiters settle; the trailer has a settled step (``settling.py``)."""
    starting: bool = False
    """The only step is the first of the program, with its start-up."""
    short_ns: float = 0.0
    """ns by which the run is too short to settle, where no replay gives the settled step."""
    waiting: bool = False
    """Many steps take longer than others, as they wait: only the mean of all stands for the run."""
    may_be_layers: bool = False
    """They are found by repetition, without a backward pass and a wait of the host: they may be the layers of one."""

    def numbers(self) -> list[int]:
        """Numbers of the steps, in order."""
        return sorted({step.number for steps in self.of_rank.values() for step in steps})

    def steady(self) -> set[int]:
        """Numbers of the steps that stand for the run; all, if every one has a note."""
        noted = {step.number for steps in self.of_rank.values() for step in steps if step.note}
        return set(self.numbers()) - noted or set(self.numbers())

    def identical(self) -> set[int]:
        """Numbers of the steps that do the work of a steady one, also before the power limiters have settled."""
        return self.steady() | {number for number, note in self.notes().items() if note == SETTLING}

    def unsettled(self) -> Steps:
        """These steps, with those that come before the power limiters have settled as steady ones."""
        of_rank = {
            rank: [replace(step, note="") if step.note == SETTLING else step for step in own]
            for rank, own in self.of_rank.items()
        }
        return Steps(source=self.source, of_rank=of_rank, covered=self.covered)

    def notes(self) -> dict[int, str]:
        """Why a step is an outlier, by its number."""
        return {step.number: step.note for steps in self.of_rank.values() for step in steps if step.note}


def find_steps(log: Log, ranks: Collection[int] | None = None, by: str | None = None) -> Steps:
    """The steps of `ranks` (all without), by what `by` names: one of :data:`SOURCES`, ``annotation:NAME``; without it
    by the first of them that most of the GPUs' work belongs to. Raises PhantoraError if `by` finds none."""
    log.read_ahead(_COLUMNS)
    extent = _extents(log, ranks)
    whole = Steps(
        source="run",
        of_rank={rank: [Step(number=1, name="run", start=start, end=end)] for rank, (start, end) in extent.items()},
    )
    if not extent or by == "run":
        return whole
    named = _ANNOTATION.fullmatch(by or "")
    marks = read_marks(log, extent, named[1] if named else None)
    if by is not None:
        iterations = _asked(log, marks, by)()
        found = _steps(log, iterations, marks) if iterations else None
        if found is None:
            raise PhantoraError(f"{log.path}: no steps by {by}{_hint(marks)}")
        return found
    best = whole
    sources = ["optimizer", "profiler", "dataloader", *_annotations(marks), "backward", "pattern"]
    if log.out_of_memory:
        sources = [
            source for source in sources if source not in ("backward", "pattern")
        ]  # what repeats in a pass that did not fit are its layers
    for source in sources:
        iterations = _asked(log, marks, source)()
        found = _steps(log, iterations, marks) if iterations else None
        if found is None:
            continue
        if found.covered >= _ENOUGH:
            return found
        if best is whole or found.covered > best.covered:
            best = found
    return best


def _annotations(marks: Marks) -> list[str]:
    """Annotations to try: the rarest that repeat."""
    return [f"annotation:{name}" for name in repeated_annotations(marks)[:3]]


def _asked(log: Log, marks: Marks, by: str) -> Callable[[], Iterations | None]:
    named = _ANNOTATION.fullmatch(by)
    known: dict[str, Callable[[], Iterations | None]] = {
        "optimizer": lambda: by_optimizer(log, marks),
        "profiler": lambda: by_profiler(marks),
        "dataloader": lambda: by_dataloader(marks),
        "annotation": lambda: by_annotation(marks, next(iter(repeated_annotations(marks)), "")),
        "backward": lambda: by_backward(log, marks),
        "pattern": lambda: by_repetition(log, marks),
    }
    if named:
        return lambda: by_annotation(marks, named[1])
    if by not in known:
        raise PhantoraError(f"--steps {by!r}: unknown mark; {known_names(by, SOURCES)} and annotation:NAME")
    return known[by]


def _hint(marks: Marks) -> str:
    names = repeated_annotations(marks)[:5]
    return f"; annotations that repeat: {', '.join(names)}" if names else ""


def _extents(log: Log, ranks: Collection[int] | None) -> dict[int, tuple[int, int]]:
    """First start and last end of each rank."""
    first, last = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for batch in log.batches(("rank", "start", "end"), ranks=ranks):
        more = max(0, int(batch["rank"].max()) + 1 - len(first))
        first = np.append(first, np.full(more, np.iinfo(np.int64).max))
        last = np.append(last, np.full(more, np.iinfo(np.int64).min))
        np.minimum.at(first, batch["rank"], batch["start"])
        np.maximum.at(last, batch["rank"], batch["end"])
    return {
        rank: (int(first[rank]), int(last[rank])) for rank in np.flatnonzero(last > np.iinfo(np.int64).min).tolist()
    }


# ---------------------------------------------------------------------- from the host's time to the GPU's


@dataclass
class _Launched:
    """Launches of a rank in each stretch of its host: odd stretches are iterations, even ones lie between them."""

    edges: Ints
    first: Ints
    """Earliest start, ns."""
    last: Ints
    """Latest end."""
    content: Content

    @classmethod
    def of(cls, iterations: Sequence[Iteration]) -> _Launched:
        edges = np.array([edge for it in iterations for edge in (it.begin, _after(it.end))], np.int64)
        size = len(edges) + 1
        return cls(edges, np.full(size, np.iinfo(np.int64).max), np.zeros(size, np.int64), Content.empty(size))


def _edges(marks: Sequence[Mark]) -> Ints:
    """Starts and ends of a rank's optimizer steps, in turn."""
    edges: list[int] = []
    for mark in marks:
        if mark.name.startswith(OPTIMIZER_STEP) and mark.start >= (edges[-1] if edges else mark.start):
            edges += (mark.start, _after(mark.end))
    return np.array(edges, np.int64)


def _after(end: int) -> int:
    return min(end, int(np.iinfo(np.int64).max) - 1) + 1


def _steps(log: Log, iterations: Iterations, marks: Marks) -> Steps | None:
    """None if none of the iterations launched anything on the GPU of some rank."""
    launched = {rank: _Launched.of(own) for rank, own in iterations.of_rank.items()}
    _read(log, launched, marks)
    found: dict[int, list[Step]] = {}
    contents: dict[int, list[Content]] = {}
    busy = inside = optimizers = stepped = 0.0
    for rank, own in iterations.of_rank.items():
        work = launched[rank]
        found[rank], contents[rank] = _of_rank(own, work)
        busy += float(work.content.busy.sum())
        inside += float(work.content.busy[1::2].sum())
        optimizers += float(work.content.optimizer.sum())
        stepped += float(work.content.optimizer[1::2].sum())
    if not found or not all(found.values()):
        return None
    # A run may go on with other work (a long evaluation at its end); what counts is that no optimizer step is missed.
    covered = stepped / optimizers if iterations.source == "optimizer" and optimizers else inside / (busy or 1.0)
    timed = {rank: [(step.number, float(step.end - step.start)) for step in own] for rank, own in found.items()}
    noted = notes(timed, contents, log.metadata.of_real)
    special = {
        **touched(windows(log.metadata.extra), [(s.number, s.start, s.end) for own in found.values() for s in own]),
        **_compiling(found, marks),
    }
    noted |= {number: why for number, why in special.items() if noted.get(number, WAITS) in (WAITS, MORE_WORK)}
    hosts = {rank: [(step.number, *step.host) for step in own] for rank, own in found.items()}
    ready = prefetched(loader_of(log.trailer), hosts, marks)
    if ready is None:
        noted, waiting = recurring_waits(noted, sorted({number for own in timed.values() for number, _ in own}))
    else:  # steps wait for the DataLoader all the time
        noted, waiting = ready | {number: why for number, why in noted.items() if why != WAITS}, True
    settled = Settled({}) if work_rises(contents) else _settle(log, iterations.source, found, noted)
    noted |= settled.notes
    of_rank = {rank: [replace(s, note=noted.get(s.number, "")) for s in own] for rank, own in found.items()}
    first = not any(work.content.busy[0] for work in launched.values())
    starting = first and not log.metadata.of_real and all(len(own) == 1 for own in found.values())
    return Steps(
        source=iterations.source,
        of_rank=of_rank,
        covered=covered,
        predicted=settled.predicted,
        starting=starting,
        short_ns=settled.short_ns,
        waiting=waiting,
        may_be_layers=iterations.source == "pattern"
        and not any(w.content.backward.any() or np.median(w.content.waited[1::2]) > 0 for w in launched.values()),
    )


def _settle(log: Log, source: str, steps: dict[int, list[Step]], noted: dict[int, str]) -> Settled:
    by_number: dict[int, list[Step]] = {}
    for own in steps.values():
        for step in own:
            if step.number not in noted:
                by_number.setdefault(step.number, []).append(step)
    spans = {
        number: (min(s.start for s in own), max(s.end for s in own), sum(s.end - s.start for s in own) / len(own))
        for number, own in by_number.items()
    }
    return settle(spans, source, log)


def _compiling(steps: dict[int, list[Step]], marks: Marks) -> dict[int, str]:
    """Steps during which a rank compiled or tuned kernels, by number; none, if all did."""
    found: dict[int, str] = {}
    for name, note in ((TUNING, "autotuning"), (COMPILING, "recompile")):
        for rank, own in steps.items():
            moments = np.array([mark.start for mark in marks[rank] if mark.name == name], np.int64)
            for step in own:
                begin, end = np.searchsorted(moments, step.host[0]), np.searchsorted(moments, step.host[1], "right")
                if end > begin:
                    found[step.number] = note
    numbers = {step.number for own in steps.values() for step in own}
    return found if set(found) != numbers else {}


def _of_rank(iterations: Sequence[Iteration], work: _Launched) -> tuple[list[Step], list[Content]]:
    done = np.maximum.accumulate(work.last)
    steps: list[Step] = []
    contents: list[Content] = []
    begin: int | None = None
    at = 1  # first stretch of the step in making
    for i, iteration in enumerate(iterations):
        slot = 2 * i + 1
        begin = iteration.begin if begin is None else begin
        before, end = int(done[at - 1]), int(done[slot])
        first = int(work.first[at : slot + 1].min())
        if end <= before or first == np.iinfo(np.int64).max:
            continue  # nothing on the GPU: its time belongs to the next
        follows = bool(steps) and not work.content.busy[at - 1]
        steps.append(
            Step(
                number=iteration.number,
                name=iteration.name,
                start=before if follows else max(before, first),
                end=end,
                begin=begin,
                until=iteration.end,
                host_time=_host_time(begin, iteration.end, work.content, at, slot),
            )
        )
        contents.append(work.content.part(at, slot + 1))
        begin, at = None, slot + 2
    return steps, contents


def _host_time(begin: int, end: int, content: Content, first: int, last: int) -> int | None:
    if begin < 0 or end >= np.iinfo(np.int64).max - 1:
        return None
    return end - begin + 1 - int(content.waited[first : last + 1].sum())


def _read(log: Log, launched: dict[int, _Launched], marks: Marks) -> None:
    """Fills `launched` from the device rows."""
    updates = {rank: _edges(own) for rank, own in marks.items()}
    product = np.array([word in PRODUCTS for word in log.words("cls")] + [False])
    backward = np.array([bool(BACKWARD.search(word)) for word in log.words("op")] + [False])
    optimizer = np.array([word == "optimizer" for word in log.words("cls")] + [False])
    to_host = np.array(["DtoH" in word for word in log.words("name")] + [False])
    sync = KIND_CODE["sync"]
    columns = ("kind", "rank", "launch", "start", "end", "op", "cls", "name", "bytes")
    for batch in log.batches(columns, kinds=(*DEVICE_KINDS, "sync"), ranks=launched):
        small = batch["rank"].astype(np.int16) if int(batch["rank"].max()) < 1 << 15 else batch["rank"]
        order = np.argsort(small, kind="stable")
        present, begin = np.unique(small[order], return_index=True)
        for rank, rows in zip(present.tolist(), np.split(order, begin[1:]), strict=True):
            work = launched[rank]
            waits = batch["kind"][rows] == sync
            waited, rows = rows[waits], rows[~waits]
            start, end = batch["start"][waited], batch["end"][waited]
            slot = np.searchsorted(work.edges, start, "right")
            work.content.waited += np.bincount(slot, end - start, len(work.last))
            launch, start, end = (batch[c][rows] for c in ("launch", "start", "end"))
            slot = np.searchsorted(work.edges, np.where(launch >= 0, launch, start), "right")
            np.minimum.at(work.first, slot, start)
            np.maximum.at(work.last, slot, end)
            content, size = work.content, len(work.last)
            length = (end - start).astype(np.float64)
            content.busy += np.bincount(slot, length, size)
            kernel = batch["kind"][rows] == KIND_CODE["kernel"]
            content.kernels += np.bincount(slot[kernel], minlength=size)
            content.computed += np.bincount(slot[kernel], length[kernel], size)
            content.backward += np.bincount(slot[kernel & backward[batch["op"][rows]]], minlength=size)
            update = np.searchsorted(updates[rank], launch[kernel], "right") % 2 == 1
            forward = product[batch["cls"][rows]][kernel] & ~backward[batch["op"][rows]][kernel] & ~update
            content.forward += np.bincount(slot[kernel][forward], minlength=size)
            content.optimizer += np.bincount(slot, length * optimizer[batch["cls"][rows]], size)
            content.to_host += np.bincount(slot, batch["bytes"][rows] * to_host[batch["name"][rows]], size)

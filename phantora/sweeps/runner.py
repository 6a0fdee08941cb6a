"""Runs the points of a plan or a search on an engine, and writes down what they gave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from phantora.errors import PhantoraError
from phantora.sweeps.journal import Journal
from phantora.sweeps.objective import Objective
from phantora.sweeps.plan import Point
from phantora.sweeps.pool import Engine
from phantora.sweeps.result import FAILED, OUT_OF_MEMORY, RAN, Measured, Result
from phantora.sweeps.task import Shared, Task

_SAME_FAILURES = 2  # points in a row
_ENOUGH, _DOUBT = 4, 0.1  # points with numbers before estimates exclude others; below their least ratio to a number


@dataclass
class Entry:
    """A point and what became of it."""

    task: Task
    result: Result | None = None
    skipped: str = ""
    """Why it was not run."""

    @property
    def point(self) -> Point:
        """The point of the space that the task runs."""
        return self.task.point


class Source(Protocol):
    """A source of points."""

    def next(self) -> Point | None:
        """None: there is none, at least not before what runs has ended."""
        ...

    def notify(self, point: Point, result: Result | None) -> None:
        """Takes the result of a point; None: it was skipped."""
        ...


@dataclass
class Listed:
    """The points of a plan, those that may be fastest first."""

    points: Sequence[Point]
    objective: Objective

    def __post_init__(self) -> None:
        likely, at_best = self.objective.likely, self.objective.at_best
        self._left = sorted(self.points, key=lambda p: (likely(p), at_best(p), -p.least_memory, -p.number))

    def next(self) -> Point | None:
        """The next point; None at the end."""
        return self._left.pop() if self._left else None

    def notify(self, point: Point, result: Result | None) -> None:
        """Nothing follows from a result: the list is fixed."""


@dataclass(kw_only=True)
class Runner:
    """One run of a sweep. Create it, call :meth:`run` once."""

    shared: Shared
    source: Source
    engine: Engine
    journal: Journal
    objective: Objective
    everything: bool = False
    """Run also what is known to be slower than the best."""
    again: bool = False
    """Run anew what failed."""
    top: int = 0
    """Logs of that many best points are kept."""
    on_result: Callable[[Entry], None] = lambda entry: None
    entries: dict[str, Entry] = field(default_factory=dict)
    """Entries by key of the task, in the order of their first use."""
    _best: Entry | None = None

    def run(self) -> list[Entry]:
        """Returns when nothing is left to run; what it has found is in the journal before. Raises PhantoraError for a
        journal that cannot be written, and for a full disk."""
        waiting: Task | None = None
        while True:
            waiting = waiting or self._next()
            if waiting is not None and self.engine.has_room(waiting):
                self.engine.begin(replace(waiting, doubtful=self._doubtful(waiting.point)))
                waiting = None
                continue
            ended = self.engine.finished()
            for task, result in ended:
                self.journal.add(result)
                self._settle(task, result)
            self._stop_if_all_fail()
            if waiting is None and not ended:
                waiting = self._next()
                if waiting is None:
                    return list(self.entries.values())

    def _stop_if_all_fail(self) -> None:
        """Raises PhantoraError where the first points failed by the same error: so would all others."""
        results = [entry.result for entry in self.entries.values() if entry.result is not None]
        errors = {result.error for result in results}
        if len(results) >= _SAME_FAILURES and len(errors) == 1 and all(r.status == FAILED for r in results):
            raise PhantoraError(f"no point ran: the first {len(results)} failed by the same error: {errors.pop()}")

    def _next(self) -> Task | None:
        """The next that has to be run; what is known already is settled."""
        while (point := self.source.next()) is not None:
            task = Task.of(point, self.shared)
            if task.key in self.entries:
                self.source.notify(point, self.entries[task.key].result)
                continue
            known = self.journal.results.get(task.key)
            self.entries[task.key] = Entry(task)
            if known is not None and not (self.again and known.status == FAILED):
                self._settle(task, known)
            elif reason := self.pointless(point):
                self._skip(self.entries[task.key], reason)
            else:
                return task
        return None

    def pointless(self, point: Point) -> str:
        """Why it need not be run: it cannot fit, or even at its bound it is slower than the best, error bar
        included."""
        from phantora.trace.analysis.units import duration, size

        if not point.fits:
            return f"needs at least {size(point.least_memory)} of {size(point.capacity)}"
        best = self._best
        if self.everything or best is None or best.result is None or best.result.measured is None:
            return ""
        measured = best.result.measured
        rate, _ = self.objective.work(best.point, measured)
        slowest = self.objective.value(best.point, rate, measured.watts) / (1 + (measured.error_above or 0.0))
        if self.objective.at_best(point) < slowest:
            return f"a step takes at least {duration(point.least_time)}: the best is better"
        memory = self._lowest(lambda one, found: found.memory / one.likely_memory if one.likely_memory else None)
        if memory is not None and point.likely_memory * memory > point.capacity:
            return "by the points that ran it does not fit (--all runs it)"
        share = self._lowest(lambda one, found: found.step_time / one.likely_time if one.likely_time else None)
        likely_best = self.objective.value(best.point, rate, measured.watts) / (1 + (measured.error or 0.0))
        if share is not None and self.objective.likely(point) / share < likely_best:
            return "by the points that ran it is slower than the best (--all runs it)"
        return ""

    def _lowest(self, ratio: Callable[[Point, Measured], float | None]) -> float | None:
        """The least ratio of a measured number to the estimated one in the points so far, less a margin; None before
        there are enough."""
        results = ((one.point, one.result.measured) for one in self.entries.values() if one.result is not None)
        found = [each for point, seen in results if seen is not None and (each := ratio(point, seen)) is not None]
        return min(found) * (1.0 - _DOUBT) if len(found) >= _ENOUGH else None

    def _doubtful(self, point: Point) -> bool:
        """True if a point with certainly no larger needs did not fit on GPUs with at least as much memory. A run on
        larger GPUs then answers sooner, and shows the needed memory."""
        others = (entry for entry in self.entries.values() if entry.result and entry.result.status == OUT_OF_MEMORY)
        return any(
            0 < other.point.least_memory <= point.least_memory and other.point.capacity >= point.capacity
            for other in others
        )

    def _skip(self, entry: Entry, reason: str) -> None:
        entry.skipped = reason
        self.source.notify(entry.point, None)
        self.on_result(entry)

    def _settle(self, task: Task, result: Result) -> None:
        entry = self.entries.setdefault(task.key, Entry(task))
        entry.result = result
        roomy = result.measured is not None and self.objective.has_room(result.measured)
        if result.status == RAN and roomy and (self._best is None or self._value(entry) > self._value(self._best)):
            self._best = entry
        self.source.notify(task.point, result)
        self._drop_logs()
        self.on_result(entry)

    def _value(self, entry: Entry) -> float:
        assert entry.result is not None and entry.result.measured is not None
        rate, _ = self.objective.work(entry.point, entry.result.measured)
        return self.objective.value(entry.point, rate, entry.result.measured.watts)

    def _drop_logs(self) -> None:
        """Deletes the logs of all but the best points: a log of many ranks takes a hundred MB and more."""
        ran = [e for e in self.entries.values() if e.result is not None and e.result.status == RAN]
        ran.sort(key=self._value, reverse=True)
        kept = {entry.task.key for entry in ran[: self.top]}
        for entry in self.entries.values():
            if entry.result is not None and entry.task.key not in kept:
                entry.task.log.unlink(missing_ok=True)

"""The log cut into windows of time, one per step, each with all rows that touch it, sorted by rank.

The log is ordered by end and is read backwards: when its beginning is reached, a window has seen every
row that ends in it or later, so a row that reaches over the border, however long, is in all windows
that it touches. Memory holds one window at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from phantora.errors import PhantoraError
from phantora.trace.analysis.steps import Step, Steps
from phantora.trace.reader import Log
from phantora.trace.schema import KIND_CODE, KINDS

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Columns = dict[str, npt.NDArray[Any]]

_THREADS = 2  # that sort columns, each one column at a time


@dataclass(frozen=True, kw_only=True)
class Span:
    """Borders of a window on every rank; positions are those of `Windows.ranks`."""

    step: int | None
    """Number of the step, None for what lies outside of steps."""
    name: str
    present: Mask
    """Ranks that have this step."""
    start: Ints
    end: Ints
    note: str = ""
    """Why the step does not stand for the others; empty for a steady one."""

    @property
    def steady(self) -> bool:
        """A step that stands for the run."""
        return self.step is not None and not self.note

    @property
    def first(self) -> int:
        """Time at which the first rank begins the step (ns)."""
        return int(self.start[self.present].min())

    @property
    def last(self) -> int:
        """Time at which the last rank ends the step (ns)."""
        return int(self.end[self.present].max())


@dataclass
class Window:
    """A span with all rows that touch it."""

    span: Span
    index: int
    """Position of the span, 0 for the earliest."""
    columns: Columns
    """Rows that touch the time from `span.first` to `span.last`, sorted by (rank position, end); the
    column ``rank`` holds positions. All ranks of the log share the longest stretch, so that a path
    from rank to rank finds its rows."""
    bounds: Ints
    """Rows of rank position i are bounds[i] to bounds[i + 1]."""

    def __getitem__(self, column: str) -> npt.NDArray[Any]:
        return self.columns[column]

    def of_rank(self, position: int) -> Columns:
        """Rows of the rank at `position`."""
        part = slice(int(self.bounds[position]), int(self.bounds[position + 1]))
        return {name: values[part] for name, values in self.columns.items()}

    @cached_property
    def own(self) -> Mask:
        """Rows that end inside the rank's own span: each row of the log is own in one window at most."""
        end, counts = self.columns["end"], np.diff(self.bounds)
        first = np.where(self.span.present, self.span.start, np.iinfo(np.int64).max)
        inside: Mask = (end > np.repeat(first, counts)) & (end <= np.repeat(self.span.end, counts))
        return inside


def kind_mask(kinds: Collection[str]) -> Mask:
    """For each kind code: True if the kind is among `kinds`."""
    return np.array([kind in kinds for kind in KINDS])


def code(kind: str) -> int:
    """Number of a kind of row in the log's dictionary."""
    return KIND_CODE[kind]


def spans_of(steps: Steps, ranks: Sequence[int], begin: int, end: int, outside: bool) -> list[Span]:
    """The spans of `steps`, ascending, with what lies outside of them between, from `begin` to `end`
    (in ns; rows that end at `begin` are left out, so it lies before the first row). Without
    `outside` the steps only."""
    numbers = steps.numbers()
    steady, notes = steps.steady(), steps.notes()
    by_number: list[list[Step | None]] = []
    for number in numbers:
        found = {rank: next((s for s in steps.of_rank[rank] if s.number == number), None) for rank in ranks}
        by_number.append([found[rank] for rank in ranks])
    spans: list[Span] = []
    at = np.full(len(ranks), begin, np.int64)

    def rest(until: Ints) -> None:
        if outside and bool((until > at).any()):
            spans.append(
                Span(step=None, name="outside of steps", present=until > at, start=at.copy(), end=until.copy())
            )

    for number, own in zip(numbers, by_number, strict=True):
        present = np.array([step is not None for step in own])
        start = np.array([step.start if step else at[i] for i, step in enumerate(own)], np.int64)
        stop = np.array([step.end if step else at[i] for i, step in enumerate(own)], np.int64)
        rest(start)
        name = next(step.name for step in own if step)
        spans.append(
            Span(
                step=number,
                name=name,
                present=present,
                start=start,
                end=stop,
                note="" if number in steady else notes[number],
            )
        )
        at = np.maximum(at, stop)
    rest(np.full(len(ranks), end, np.int64))
    return spans


def windows(
    log: Log, ranks: Sequence[int], spans: Sequence[Span], columns: Sequence[str], kinds: Collection[str] | None = None
) -> Iterator[Window]:
    """The windows of `spans` from the last to the first.

    `columns` must hold rank, start and end. Raises PhantoraError when the rows are out of order."""
    position = np.full(max(ranks, default=0) + 1, -1, np.int32)
    position[list(ranks)] = np.arange(len(ranks), dtype=np.int32)
    source = log.batches(columns, kinds, ranks, reverse=True)
    carried: list[Columns] = []  # from the last to the first
    reached = np.iinfo(np.int64).max  # every row that ends later has been read
    with ThreadPoolExecutor(_THREADS, "window") as threads:
        for index in range(len(spans) - 1, -1, -1):
            span = spans[index]
            pieces = carried
            while reached > span.first:
                batch = next(source, None)
                if batch is None:
                    break
                _check_order(log, batch["end"], reached)
                reached = int(batch["end"][0])
                part = {name: batch[name] for name in columns}
                part["rank"] = position[part["rank"]]
                # Rows that begin later are beyond all windows that are still to come.
                pieces = [*pieces, _rows(part, part["start"] <= span.last if reached > span.last else None)]
            carried = [_rows(piece, piece["start"] <= spans[index - 1].last) for piece in pieces] if index else []
            carried = [piece for piece in carried if len(piece["end"])]
            if pieces:
                inside = [_rows(p, (p["end"] >= span.first) & (p["start"] <= span.last)) for p in reversed(pieces)]
                yield _sorted(span, index, inside, len(ranks), threads)


def _rows(columns: Columns, mask: Mask | None) -> Columns:
    """The rows of `mask`; without a copy if these are all."""
    if mask is None or bool(mask.all()):
        return columns
    return {name: values[mask] for name, values in columns.items()}


def _sorted(span: Span, index: int, pieces: Sequence[Columns], ranks: int, threads: ThreadPoolExecutor) -> Window:
    """The window of the rows of `pieces`, which follow each other in time."""
    counts = [np.bincount(piece["rank"], minlength=ranks) for piece in pieces]
    bounds = np.concatenate([[0], np.cumsum(sum(counts))]).astype(np.int64)
    free = bounds[:-1]  # the next place of each rank
    places: list[Ints] = []
    for piece, count in zip(pieces, counts, strict=True):
        rank = piece["rank"]
        small = rank.astype(np.int16) if ranks < 1 << 15 else rank  # NumPy sorts 16 bits by radix
        place = np.empty(len(rank), np.int64)
        place[np.argsort(small, kind="stable")] = np.arange(len(rank)) + np.repeat(
            free - np.cumsum(count) + count, count
        )
        places.append(place)
        free = free + count

    def put(name: str) -> npt.NDArray[Any]:
        found = np.empty(int(bounds[-1]), pieces[0][name].dtype)
        for piece, place in zip(pieces, places, strict=True):
            found[place] = piece[name]
        return found

    names = list(pieces[0])
    return Window(span, index, dict(zip(names, threads.map(put, names), strict=True)), bounds)


def _check_order(log: Log, end: Ints, reached: int) -> None:
    if int(end[-1]) > reached or bool(np.any(end[1:] < end[:-1])):
        raise PhantoraError(f"{log.path}: the rows are not in order of their end; Phantora did not write the log so")

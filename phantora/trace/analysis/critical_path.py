"""The critical path of each step: backwards from its end, always to what was waited for last."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from phantora.trace.analysis.annotations import innermost
from phantora.trace.analysis.communicators import Group, group_of
from phantora.trace.analysis.dependencies import COMMUNICATION, NEVER, ON_STREAM, WAIT, WORK, Dependencies
from phantora.trace.analysis.report import CriticalPath, PathSegment
from phantora.trace.analysis.windows import Columns, Window, kind_mask
from phantora.trace.analysis.zero_cost import free_class_gains
from phantora.trace.reader import Log

Ints = npt.NDArray[np.int64]

HOST, LATENCY, GAP, DELAY, SYNC = "host", "launch latency", "launch gap", "delay", "synchronisation"
_HOST_ROWS = kind_mask(("operator", "annotation"))


class CriticalPaths:
    """Walks one path per window of a step."""

    def __init__(
        self, log: Log, ranks: list[int], known: dict[int, Group], gains_for: int | None, most_joins: int | None
    ) -> None:
        """`gains_for`: number of the step whose gains are computed, unless it has more than `most_joins`
        places where streams or ranks join; the others' are left out."""
        self._log, self._ranks, self._groups = log, ranks, known
        self._gains_for, self._most_joins = gains_for, most_joins
        self._found: list[CriticalPath] = []

    def add(self, window: Window) -> None:
        """Adds the critical path of one step."""
        walk = _Walk(self._log, window, self._ranks, self._groups)
        self._found.append(walk.path(window.span.step == self._gains_for, self._most_joins))

    def report(self) -> list[CriticalPath]:
        """The paths, in the order of the steps."""
        return sorted(self._found, key=lambda path: path.step)


class _Walk:
    def __init__(self, log: Log, window: Window, ranks: list[int], known: dict[int, Group]) -> None:
        self.meta, self.window, self.ranks, self.groups = log.metadata, window, ranks, known
        self.names, self.classes = log.words("name"), log.words("cls")
        self.d = Dependencies(window, log.metadata)
        self.segments: list[PathSegment] = []
        self.by_host: Counter[str] = Counter()
        self.by_collective: Counter[str] = Counter()
        span = window.span
        self.end_rank = int(np.argmax(np.where(span.present, span.end, -1)))
        self.begin, self.end = max(0, int(span.start[self.end_rank])), int(span.end[self.end_rank])
        self._host: dict[int, tuple[Ints, Ints]] = {}

    def path(self, with_gains: bool, most_joins: int | None = None) -> CriticalPath:
        self._run()
        self.segments.reverse()
        by_class: Counter[str] = Counter()
        by_rank: Counter[int] = Counter()
        for segment in self.segments:
            length = segment.end - segment.start
            by_class[segment.cls] += length
            by_rank[segment.rank] += length
        step = self.window.span.step
        assert step is not None
        gain = None
        if with_gains:
            gain = free_class_gains(self.d, self.classes, list(by_class), self.begin, most_joins)
        return CriticalPath(
            step=step,
            time=self.end - self.begin,
            length=sum(by_class.values()),
            start_rank=self.segments[0].rank if self.segments else self.ranks[self.end_rank],
            end_rank=self.ranks[self.end_rank],
            by_class=dict(by_class.most_common()),
            by_rank=dict(sorted(by_rank.items())),
            by_collective=dict(self.by_collective.most_common()),
            by_host=dict(self.by_host.most_common(20)),
            gain=gain,
            segments=self.segments,
        )

    # ------------------------------------------------------------------ the walk

    def _run(self) -> None:
        """Invariant: the path from `time` on is complete; `row` is at `time` the device row to explain, or
        -1 when the host of `rank` is."""
        d, rank, time = self.d, self.end_rank, self.end
        row = self._ended_at(rank, time)
        if row >= 0:
            row, time = self._work(row, time)
        while time > self.begin:
            if row < 0:
                row, time = self._host_back(rank, time)
                if row >= 0:
                    row, time = self._work(row, time)
                continue
            rank = int(d.rank[row])
            record = int(d.record[row]) if d.kind[row] == WAIT else -1
            waited = int(d.end[record]) if record >= 0 else NEVER
            freed, launched = int(d.freed[row]), int(d.launched[row])
            latest = max(x for x in (waited, freed, launched, NEVER) if x <= time)
            if latest < time and WORK[d.kind[row]]:
                other = self._ended_at(rank, time, excluding=row)
                if other >= 0:  # it had waited for room on the GPU
                    row, time = self._work(other, time)
                    continue
            if latest <= NEVER:
                self._add(self.begin, time, rank, -1, HOST, "before the log's rows")
                return
            if latest < time:
                self._add(latest, time, rank, int(d.stream[row]), DELAY, self._name(row))
                time = latest
            if latest == waited:
                row, time = self._work(record, time)
            elif latest == freed:
                previous = int(d.previous[row])
                self._add(int(d.end[previous]), time, rank, int(d.stream[row]), GAP, self._name(row))
                row, time = self._work(previous, int(d.end[previous]))
            else:
                launch = int(self.window["launch"][row])
                self._add(launch, time, rank, int(d.stream[row]), LATENCY, self._name(row))
                row, time = -1, launch

    def _work(self, row: int, time: int) -> tuple[int, int]:
        """Goes through the work of `row`, which ended at `time`, to its beginning, over to the rank that
        began it if it is a collective. Returns the row to explain there."""
        d, rank = self.d, int(self.d.rank[row])
        if not WORK[d.kind[row]]:
            return row, time
        begin = int(d.start[row])
        name, cls = self._name(row), self._class(row)
        if COMMUNICATION[d.kind[row]]:
            begin = int(d.ready[row])
            label = f"{name} [{group_of(self.groups, int(self.window['comm'][row])).label}]"
            self.by_collective[label] += max(0, time - max(begin, self.begin))
            partner = int(d.partner[row])
            if begin > d.start[row] and partner < 0:  # the last rank is not among those reported on
                self._add(begin, time, rank, int(d.stream[row]), cls, name)
                self._add(int(d.start[row]), begin, rank, int(d.stream[row]), "late rank", name)
                return row, int(d.start[row])
            if partner >= 0:
                self._add(begin, time, rank, int(d.stream[row]), cls, name)
                return partner, begin
        self._add(begin, time, rank, int(d.stream[row]), cls, name)
        return row, begin

    def _host_back(self, rank: int, time: int) -> tuple[int, int]:
        """Back along the host to its last wait, and to the device row that ended that."""
        d = self.d
        place = d.sync_before(rank, time)
        if place < 0 or int(d.end[d.syncs[place]]) <= self.begin:
            self._add_host(self.begin, time, rank)
            return -1, self.begin
        sync, release = int(d.syncs[place]), int(d.release[place])
        self._add_host(int(d.end[sync]), time, rank)
        if release < 0:
            self._add(int(d.start[sync]), int(d.end[sync]), rank, -1, SYNC, self._name(sync))
            return -1, int(d.start[sync])
        self._add(int(d.end[release]), int(d.end[sync]), rank, -1, SYNC, self._name(sync))
        return release, int(d.end[release])

    def _ended_at(self, rank: int, time: int, excluding: int = -1) -> int:
        """A row that did work on the rank's GPU and ended at `time`, -1 for none."""
        low, high = self.window.bounds[rank : rank + 2]
        end = self.d.end[low:high]
        first, last = np.searchsorted(end, [time, time + 1])
        for row in range(int(low + last) - 1, int(low + first) - 1, -1):
            kind = self.d.kind[row]
            if row != excluding and ON_STREAM[kind] and self.d.start[row] < time and kind != WAIT:
                return row
        return -1

    # ------------------------------------------------------------------ segments

    def _add(self, start: int, end: int, rank: int, stream: int, cls: str, name: str) -> None:
        start = max(start, self.begin)
        if end > start:
            self.segments.append(
                PathSegment(start=start, end=end, rank=self.ranks[rank], stream=stream, cls=cls, name=name)
            )

    def _add_host(self, start: int, end: int, rank: int) -> None:
        """Host time, distinguished by the innermost operator or annotation."""
        start = max(start, self.begin)
        if end <= start:
            return
        if rank not in self._host:
            self._host[rank] = innermost(self._host_spans(self.window.of_rank(rank)))
        moments, names = self._host[rank]
        first, last = np.searchsorted(moments, [start, end], "right")
        borders = [start, *moments[first:last].tolist(), end]
        totals: Counter[str] = Counter()
        for i, (a, b) in enumerate(pairwise(borders)):
            index = int(names[first + i])
            totals[self.names[index] if index >= 0 else "Python"] += b - a
        self.by_host.update(totals)
        self._add(start, end, rank, -1, HOST, totals.most_common(1)[0][0])

    @staticmethod
    def _host_spans(rows: Columns) -> list[tuple[int, int, int]]:
        mask = _HOST_ROWS[rows["kind"]] & (rows["end"] > rows["start"])
        columns = (rows[c][mask].tolist() for c in ("start", "end", "name"))
        return sorted(zip(*columns, strict=True), key=lambda span: (span[0], -span[1]))

    def _name(self, row: int) -> str:
        index = int(self.window["name"][row])
        return self.names[index] if index >= 0 else "(unnamed)"

    def _class(self, row: int) -> str:
        index = int(self.window["cls"][row])
        if COMMUNICATION[self.d.kind[row]]:
            return "communication"
        return self.classes[index] if index >= 0 else "unknown"

"""Dependencies of each launch of a real rank (its host, its stream, other streams), and the waits of the host.

A trace does not say which event a stream or a host waits for, unless it was made with ``enable_cuda_sync_events``. Then
it is inferred from times: work that ended before another began, and was launched before the call, may be what the call
waited for. No dependency runs against the time of the trace, so a replay cannot hang on a wrong one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from phantora.importers.linking import Links
from phantora.importers.rank import CODES, RankTrace, Rows, Vocabulary, is_device
from phantora.importers.schedule import WHOLE_GPU, Ints, Sync, Timeline, Wait
from phantora.trace.schema import COPY_KINDS

SLACK_NS = 2_000  # by which clocks of the GPU and the host may disagree
_LATE_NS = 20_000  # a host goes on so soon after the work that it waited for
_BLOCKED_NS = 20_000  # a launch that takes longer, while the queue is deep, waited for room
_DEEP = 512  # launches that are not done
_FLOOR = 10  # percentile of gaps and latencies that every launch has

_SHARES = np.zeros(256, bool)
_SHARES[[CODES[kind] for kind in ("kernel", *COPY_KINDS)]] = True


@dataclass(frozen=True)
class Floors:
    """Least time of every launch, ns; the excess of single launches is their delay."""

    launch_latency_ns: int
    kernel_gap_ns: int


def floors(traces: Iterable[RankTrace], links: Iterable[Links]) -> Floors:
    """Floors of all ranks together."""
    latencies: list[Ints] = []
    gaps: list[Ints] = []
    for trace, link in zip(traces, links, strict=True):
        rows = trace.rows
        work = np.flatnonzero(_SHARES[link.kind] & (link.launch >= 0))
        order = work[np.lexsort((rows["start"][work], rows["stream"][work]))]
        if len(order) < 2:
            continue
        same = rows["stream"][order][1:] == rows["stream"][order][:-1]
        start, before, launch = rows["start"][order][1:], rows["end"][order][:-1], link.launch[order][1:]
        gap, latency = start - before, start - launch
        gaps.append(gap[same & (gap >= 0) & (latency > 2 * gap) & (launch < before)])
        latencies.append(latency[same & (launch > before) & (latency > 0)])
    return Floors(*(_low(found) for found in (latencies, gaps)))


def _low(found: list[Ints]) -> int:
    values = np.concatenate(found) if found else np.zeros(0, np.int64)
    return int(np.percentile(values, _FLOOR)) if len(values) else 0


def timeline(trace: RankTrace, links: Links, floor: Floors, words: Vocabulary) -> Timeline:
    """The launches of `trace` and their waits."""
    return _Builder(trace, links, floor, words).build()


def _launched(rows: Rows, links: Links, device: Ints, floor: Floors) -> Ints:
    """When each of the rows `device` was launched, ns. Where the trace has no call (the work was launched before it
    began), as late as the order of the stream allows: an earlier launch would belong to the step before. What a stream
    ran before all work with a call was launched before the first call: a host that waits for it launches nothing."""
    start, known = rows["start"][device], links.launch[device] >= 0
    latest = np.where(known, np.minimum(links.launch[device], start), start - floor.launch_latency_ns)
    if known.all():
        return latest
    begin = int(rows["start"].min())
    calls = rows["start"][np.isin(links.kind, [CODES["call"], CODES["sync"]])]
    first = int(calls.min(initial=np.iinfo(np.int64).max))
    for stream in np.unique(rows["stream"][device][~known]):
        own = np.flatnonzero(rows["stream"][device] == stream)
        own = own[np.argsort(start[own], kind="stable")]
        leading = own[: int(np.argmax(known[own]))]  # none on a stream without calls
        latest[leading] = np.minimum(latest[leading], first - 1)
        before_later = np.minimum.accumulate(latest[own][::-1])[::-1]
        latest[own] = np.where(known[own], latest[own], np.maximum(begin, before_later))
    found: Ints = latest
    return found


class _Builder:
    def __init__(self, trace: RankTrace, links: Links, floor: Floors, words: Vocabulary) -> None:
        self._trace, self._links, self._floor, self._words = trace, links, floor, words
        rows = trace.rows
        device = np.flatnonzero(is_device(links.kind))
        launch = _launched(rows, links, device, floor)
        order = np.lexsort((rows["start"][device], launch))
        self._rows, self._launch = device[order], launch[order]
        self._start, self._end = rows["start"][self._rows], rows["end"][self._rows]
        self._stream = rows["stream"][self._rows]
        called = links.call[self._rows]
        self._thread = np.where(called >= 0, rows["stream"][np.maximum(called, 0)], -1)
        self._of_stream = {int(s): np.flatnonzero(self._stream == s) for s in np.unique(self._stream)}
        self._of_id = np.full(int(links.id.max(initial=0)) + 1, -1, np.int64)
        self._of_id[links.id] = np.arange(len(rows))
        self._place = np.full(len(rows), -1, np.int64)
        self._place[self._rows] = np.arange(len(self._rows))

    def build(self) -> Timeline:
        waits = self._waits()
        syncs = self._syncs()
        blocked = self._blocked()
        launch = self._launch.copy()
        for sync, place in blocked:
            launch[place] = max(launch[place], min(sync.resumes, int(self._start[place])))
        delay = self._delays(launch, waits)
        syncs = _apart([*syncs, *(sync for sync, _ in blocked)], self._trace)
        return Timeline(self._rows, launch, delay, waits, syncs)

    # ------------------------------------------------------------------ streams

    def _before(self, stream: int, time: int) -> int:
        """The last launch on `stream` that was called before `time`; -1 for none."""
        own = self._of_stream.get(stream)
        if own is None:
            return -1
        place = int(np.searchsorted(self._launch[own], time, "left")) - 1
        return int(own[place]) if place >= 0 else -1

    def _waits(self) -> list[Wait]:
        """Waits of streams for each other, in order of their calls."""
        rows, links = self._trace.rows, self._links
        found: list[Wait] = []
        reported: set[int] = set()
        for position in np.flatnonzero(links.kind == CODES["wait"]).tolist():
            record = int(links.link[position])
            source = self._trace.waits.get(position, (-1, -1))[1]
            reported.add(int(rows["correlation"][position]))
            if record < 0:
                continue
            item = self._before(source, int(rows["start"][self._of_id[record]]) + 1)
            time = int(links.launch[position]) if links.launch[position] >= 0 else int(rows["start"][position])
            if item >= 0 and self._launch[item] <= time:
                found.append(Wait(time, int(rows["stream"][position]), item))
        for position in self._calls("StreamWaitEvent"):
            if int(rows["correlation"][position]) not in reported:
                wait = self._inferred(int(rows["start"][position]), int(rows["stream"][position]))
                found += [wait] if wait is not None else []
        return sorted(found, key=lambda wait: wait.time)

    def _calls(self, part: str) -> list[int]:
        """Positions of calls whose names contain `part`."""
        named = np.array([part in str(word) for word in self._words.names.words] + [False])
        rows = self._trace.rows
        found: list[int] = np.flatnonzero((self._links.kind == CODES["call"]) & named[rows["name"]]).tolist()
        return found

    def _inferred(self, time: int, thread: int) -> Wait | None:
        """Meaning of a wait that was called at `time`: the next launch of its thread waits for another stream."""
        own = np.flatnonzero(self._thread == thread)
        place = int(np.searchsorted(self._launch[own], time))
        if place == len(own):
            return None
        following = int(own[place])
        stream, start = int(self._stream[following]), int(self._start[following])
        last = int(self._stream[own[place - 1]]) if place else stream
        sources = [last] if last != stream else [s for s in self._of_stream if s != stream]
        best = -1
        for source in sources:
            item = self._before(source, time)
            while item >= 0 and self._end[item] > start + SLACK_NS:
                item = self._earlier(item)
            if item >= 0 and (best < 0 or self._end[item] > self._end[best]):
                best = item
        return Wait(time, stream, best) if best >= 0 else None

    def _earlier(self, item: int) -> int:
        """The launch before `item` on its stream; -1 for none."""
        own = self._of_stream[int(self._stream[item])]
        place = int(np.searchsorted(own, item)) - 1
        return int(own[place]) if place >= 0 else -1

    def _delays(self, launch: Ints, waits: list[Wait]) -> Ints:
        delay = np.zeros(len(launch), np.int64)
        free: dict[int, tuple[int, int]] = {}  # by stream: when it is free, and from when on after a gap
        latency, gap = self._floor.launch_latency_ns, self._floor.kernel_gap_ns
        shares = _SHARES[self._links.kind[self._rows]]
        columns = (launch.tolist(), self._stream.tolist(), self._start.tolist(), self._end.tolist(), shares.tolist())
        place = 0
        for item, (called, stream, start, end, spaced) in enumerate(zip(*columns, strict=True)):
            while place < len(waits) and waits[place].time <= called:
                wait = waits[place]
                done, spaced_from = int(self._end[wait.item]), free.get(wait.stream, (0, 0))
                if done > spaced_from[0]:
                    free[wait.stream] = (done, done)
                place += 1
            at, after_gap = free.get(stream, (0, 0))
            due = max(after_gap if spaced else at, called + latency)
            delay[item] = max(0, start - due)
            free[stream] = (end, end + (gap if spaced else 0))
        return delay

    # ------------------------------------------------------------------ the host

    def _syncs(self) -> list[Sync]:
        rows, links = self._trace.rows, self._links
        found: list[Sync] = []
        for position in np.flatnonzero(links.kind == CODES["sync"]).tolist():
            start, end = int(rows["start"][position]), int(rows["end"][position])
            name = str(self._words.names.words[rows["name"][position]])
            if "DeviceSync" in name or "CtxSync" in name:
                before = int(np.searchsorted(self._launch, start))
                done = int(self._end[:before].max(initial=start))
                found.append(Sync(position, start, min(max(start, done), end), WHOLE_GPU))
                continue
            item = self._awaited(position, start, end, of_stream="StreamSync" in name)
            if item >= 0:
                done = int(self._end[item])
                found.append(Sync(position, max(start, int(self._launch[item])), min(max(start, done), end), item))
        return found

    def _awaited(self, position: int, start: int, end: int, of_stream: bool) -> int:
        """The launch that a wait of the host ended with; -1 if unknown."""
        own = np.flatnonzero(self._links.call[self._rows] == position)  # a copy that waits for itself
        if len(own):
            return int(own[-1])
        linked = int(self._links.link[position])
        item = int(self._place[self._of_id[linked]]) if linked >= 0 else -1
        if item >= 0 and self._launch[item] > end:
            item = -1
        if not of_stream:
            return item
        mine = np.flatnonzero((self._thread == self._trace.rows["stream"][position]) & (self._launch <= start))
        last = self._before(int(self._stream[mine[-1]]), start + 1) if len(mine) else -1
        if last >= 0 and -SLACK_NS <= end - self._end[last] <= _LATE_NS:
            return last
        return item

    def _blocked(self) -> list[tuple[Sync, int]]:
        """Launches that waited for room in the queue of a stream, and their places."""
        links, rows = self._links, self._trace.rows
        called = links.call[self._rows]
        counts = (called >= 0) & (links.kind[called] == CODES["call"])
        took = np.where(counts, rows["end"][called] - rows["start"][called], 0)
        first = np.concatenate([[True], called[1:] != called[:-1]]) if len(called) else np.zeros(0, bool)
        found: list[tuple[Sync, int]] = []
        for place in np.flatnonzero((took > _BLOCKED_NS) & first).tolist():
            call = int(called[place])
            start, end = int(rows["start"][call]), int(rows["end"][call])
            for own in self._of_stream.values():
                before = own[: int(np.searchsorted(own, place))]
                done = int(np.searchsorted(np.maximum.accumulate(self._end[before]), end, "right"))
                if len(before) - done < _DEEP or not done or self._end[before[done - 1]] <= start:
                    continue
                resumes = min(end, int(self._end[before[done - 1]]))
                found.append((Sync(call, start, resumes, int(before[done - 1]), room=True), place))
                break
        return found


def _apart(syncs: list[Sync], trace: RankTrace) -> list[Sync]:
    """Waits in order of their time; of those that overlap, since two threads wait, the first."""
    found: list[Sync] = []
    for sync in sorted(syncs, key=lambda each: each.time):
        if not found or int(trace.rows["end"][found[-1].row]) <= sync.time:
            found.append(sync)
    return found

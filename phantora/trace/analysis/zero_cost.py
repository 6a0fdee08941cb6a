"""Gain if one class of work took no time, exact within the recorded dependencies.

Every row is a node that ends a fixed time after the last of what it waited for (see dependencies.py);
that time is the row's own duration plus whatever delay the dependencies don't explain. With nothing free
the recorded times come out, by construction. With a class free its rows' durations (a collective's from its
last arrival, the host's time between its waits) are zero and the longest path is computed anew.

Rows that follow each other on a stream and depend on nothing but the row before and one stretch of host
time are taken together: their end is max(x + a, h + b) of the stream's state x and the host's h, with a and b
from cumulative sums. Only what joins streams or ranks is visited one by one, for all classes at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from phantora.trace.analysis.dependencies import COLLECTIVE, COMMUNICATION, NEVER, ON_STREAM, WAIT, WORK, Dependencies

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def free_class_gains(
    d: Dependencies, classes: list[str], free: Sequence[str], begin: int, most: int | None = None
) -> dict[str, int] | None:
    """Nanoseconds by which the window's step were shorter with each class of `free` taking no time;
    classes that are no durations (gaps, latencies, waits) are left out. `begin`: the step's start.
    None when more than `most` places where streams or ranks join would have to be visited."""
    chosen = [name for name in free if name in ("host", "communication") or name in classes or name == "unknown"]
    graph = _Graph(d, classes, chosen, begin)
    if most is not None and len(graph.first) > most:
        return None
    ends = graph.solve()
    return {name: int(ends[0] - ends[k + 1]) for k, name in enumerate(chosen)}


class _Graph:
    """Vectors have one entry for nothing free and one per free class."""

    def __init__(self, d: Dependencies, classes: list[str], free: list[str], begin: int) -> None:
        self.d, self.begin = d, begin
        self.size = 1 + len(free)
        span = d.window.span
        self.inside: Mask = (d.end <= span.end[d.rank]) & (d.end > begin) & span.present[d.rank]
        self.host_free = np.array([False] + [name == "host" for name in free])
        self.segment = self._segments()
        self._weigh(classes, free)
        self._chain()

    # ---- host time: one stretch between two waits after the other

    def _segments(self) -> Ints:
        """Position in `syncs` of the wait before each row's launch, -1 if none ended inside the step."""
        d = self.d
        launch = d.window["launch"]
        found = np.full(len(launch), -1, np.int64)
        for rank in range(len(d.window.bounds) - 1):
            rows = slice(int(d.window.bounds[rank]), int(d.window.bounds[rank + 1]))
            low, high = int(d.sync_bounds[rank]), int(d.sync_bounds[rank + 1])
            ends = d.end[d.syncs[low:high]]
            place = low + np.searchsorted(ends, launch[rows], "right") - 1
            found[rows] = np.where((place >= low) & (np.append(ends, 0)[place - low] > self.begin), place, -1)
        return found

    def _base(self, segment: int) -> int:
        return int(self.d.end[self.d.syncs[segment]]) if segment >= 0 else self.begin

    def _advance(self, host: Ints, since: int) -> Ints:
        """The host's vector `since` ns after `host`; negative: before the step, which nothing changes."""
        return np.where(self.host_free, host + min(since, 0), host + since)

    # ---- weights

    def _weigh(self, classes: list[str], free: list[str]) -> None:
        """`own`: the duration that a class' freedom takes away; `rest`: what stays between the last thing
        waited for and the end."""
        d = self.d
        waited = np.where((d.kind == WAIT) & (d.record >= 0), d.end[d.record], NEVER)
        bound = np.maximum(np.maximum(d.freed, d.launched), waited)
        bound = np.where(bound > NEVER, bound, d.start)
        communication = COMMUNICATION[d.kind]
        start = np.where(communication, d.start, d.end)
        # Of communication, what lies before its arrival; its transfer is added when all have arrived.
        self.own: Ints = np.where(WORK[d.kind] & ~communication, d.end - d.start, 0)
        self.rest: Ints = start - bound - self.own
        names = [*classes, "unknown"]
        cls = np.where(d.window["cls"] >= 0, d.window["cls"], len(classes))
        self.free_of = [np.array([n == name for n in names])[cls] & ~communication for name in free]
        self.communication_free = np.array([False] + [name == "communication" for name in free])

    # ---- chains

    def _chain(self) -> None:
        """Cuts each stream's rows into chains and sums those up."""
        d = self.d
        queue = d.queue[self.inside[d.queue]]
        self.queue = queue
        waits = (d.kind == WAIT) & (d.record >= 0)
        waits[waits] = self.inside[d.record[waits]] & (d.end[d.record[waits]] > self.begin)
        self.joins: Mask = waits | COMMUNICATION[d.kind]
        named = np.zeros(len(d.kind), bool)
        named[d.record[waits]] = True
        released = d.release[d.release >= 0]
        named[released] = True
        lane = d.rank[queue] * (int(d.stream.max(initial=0)) + 2) + d.stream[queue]
        fresh = np.append(True, lane[1:] != lane[:-1]) if len(queue) else np.zeros(0, bool)
        segment = self.segment[queue]
        cut = fresh.copy()
        cut[1:] |= segment[1:] != segment[:-1]
        cut |= self.joins[queue]
        cut[1:] |= self.joins[queue][:-1] | named[queue][:-1]
        self.first = np.flatnonzero(cut)
        self.last = np.append(self.first[1:], len(queue))[: len(self.first)] - 1
        lanes = np.cumsum(fresh) - 1
        self.lane = lanes[self.first] if len(queue) else np.zeros(0, np.int64)
        self.lanes = int(lanes[-1]) + 1 if len(queue) else 0
        # What each lane's first row finds: its recorded predecessor, which nothing changes.
        before = d.previous[queue[fresh]] if len(queue) else np.zeros(0, np.int64)
        self.entry = np.where(before >= 0, d.end[before], NEVER)
        gap = np.where(d.previous[queue] >= 0, d.freed[queue] - d.end[d.previous[queue]], 0)
        bases = np.array([self._base(s) for s in range(-1, len(d.syncs))], np.int64)
        offset = np.where(d.launched[queue] > NEVER, d.launched[queue] - bases[segment + 1], NEVER)
        self.a = np.zeros((len(self.first), self.size), np.int64)
        self.b = np.zeros((len(self.first), self.size), np.int64)
        latency = d.launched[queue] - d.window["launch"][queue]
        for k in range(self.size):
            own = self.own[queue]
            if k:
                own = np.where(self.free_of[k - 1][queue], 0, own)
            took = own + self.rest[queue]
            total = np.concatenate([[0], np.cumsum(gap + took)])
            since = np.minimum(offset, latency) if self.host_free[k] else offset
            if len(self.first):
                self.a[:, k] = total[self.last + 1] - total[self.first]
                lead = np.where(since > NEVER, since - (total[:-1] + gap), NEVER)
                self.b[:, k] = np.maximum.reduceat(lead, self.first) + total[self.last + 1]

    # ---- the longest path

    def solve(self) -> Ints:
        """The step's end by vector entry."""
        d, queue = self.d, self.queue
        tail = queue[self.last]
        syncs = np.flatnonzero(self.inside[d.syncs])
        # Chains and host waits by recorded time; at equal times a wait comes after what it waits for.
        times = np.concatenate([d.end[tail], d.end[d.syncs[syncs]]])
        which = np.concatenate([np.zeros(len(tail), np.int8), np.ones(len(syncs), np.int8)])
        index = np.concatenate([np.arange(len(tail)), syncs])
        rank = np.concatenate([d.rank[tail], d.rank[d.syncs[syncs]]])
        row = np.concatenate([tail, d.syncs[syncs]])
        order = np.lexsort((row, rank, which, times))

        self.state = np.repeat(self.entry[:, None], self.size, axis=1)  # by lane
        self.host = np.zeros((len(d.syncs) + 1, self.size), np.int64)
        self.host[0] = self.begin
        for place, sync in enumerate(d.syncs):
            self.host[place + 1] = d.end[sync]  # stays for waits outside the step
        self.value: dict[int, Ints] = {}
        self.arrival: dict[int, Ints] = {}
        self.chain_of = {int(r): i for i, r in enumerate(queue[self.first])}
        self._group_calls()
        for position in order.tolist():
            if which[position]:
                self._solve_sync(int(index[position]))
            else:
                self._solve_chain(int(index[position]))
        return self._end()

    def _solve_chain(self, i: int) -> None:
        d = self.d
        row, lane = int(self.queue[self.first[i]]), int(self.lane[i])
        host = self.host[int(self.segment[row]) + 1]
        if not self.joins[row]:
            state = np.maximum(self.state[lane] + self.a[i], host + self.b[i])
        elif d.kind[row] == WAIT:
            record = int(d.record[row])
            waited = self.value.get(record, np.full(self.size, d.end[record]))
            state = np.maximum(np.maximum(self.state[lane] + self.a[i], host + self.b[i]), waited + self.rest[row])
        else:
            began, recorded = self._begin(row)
            stays, transfer = int(d.ready[row]) - recorded, int(d.end[row] - d.ready[row])
            state = began + stays + np.where(self.communication_free, 0, transfer)
        self.state[lane] = state
        self.value[int(self.queue[self.last[i]])] = state

    def _arrive(self, row: int) -> Ints:
        """Start of a communication kernel on its rank."""
        found = self.arrival.get(row)
        if found is None:
            i = self.chain_of.get(row)
            if i is None:  # outside of the step
                return np.full(self.size, self.d.start[row])
            host = self.host[int(self.segment[row]) + 1]
            found = np.maximum(self.state[int(self.lane[i])] + self.a[i], host + self.b[i])
            self.arrival[row] = found
        return found

    def _begin(self, row: int) -> tuple[Ints, int]:
        """Arrival of the last row that a communication row waits for, which is the recorded one."""
        call = self.call.get(row)
        if call is None:  # a send or receive: the partner that it waited for is all that the log names
            rows = [row, int(self.d.partner[row])] if self.d.partner[row] >= 0 else [row]
        elif call in self.begun:
            return self.begun[call]
        else:
            rows = self.calls[call]
        arrivals = self._arrive(rows[0])
        for other in rows[1:]:
            arrivals = np.maximum(arrivals, self._arrive(other))
        found = arrivals, int(self.d.start[rows].max())
        if call is not None:
            self.begun[call] = found
        return found

    def _group_calls(self) -> None:
        """The rows of each collective: same communicator, sequence number and end."""
        d = self.d
        comm, seq = d.window["comm"], d.window["seq"]
        rows = np.flatnonzero((d.kind == COLLECTIVE) & self.inside & (seq >= 0))
        self.begun: dict[int, tuple[Ints, int]] = {}
        rows = rows[np.lexsort((d.end[rows], seq[rows], comm[rows]))]
        keys = np.stack([comm[rows], seq[rows], d.end[rows]])
        fresh = np.flatnonzero(np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0))) if len(rows) else rows
        self.calls: list[list[int]] = [part.tolist() for part in np.split(rows, fresh[1:])]
        self.call = {row: i for i, part in enumerate(self.calls) for row in part}

    def _solve_sync(self, place: int) -> None:
        d = self.d
        sync, release = int(d.syncs[place]), int(d.release[place])
        before = int(self.sync_segment(place))
        called = self._advance(self.host[before + 1], int(d.start[sync]) - self._base(before))
        recorded = int(d.start[sync])
        result = called
        if release >= 0:
            value = self.value.get(release)
            if value is None:
                value = np.full(self.size, d.end[release])
            recorded = max(recorded, int(d.end[release]))
            result = np.maximum(called, value)
        self.host[place + 1] = result + (int(d.end[sync]) - recorded)

    def sync_segment(self, place: int) -> int:
        """The host wait before, -1 for none inside the step."""
        d = self.d
        sync = int(d.syncs[place])
        before = d.sync_before(int(d.rank[sync]), int(d.start[sync]))
        return before if before >= 0 and int(d.end[d.syncs[before]]) > self.begin else -1

    def _end(self) -> Ints:
        """The latest end of any rank: of its streams, and of its host if that reached the end."""
        d, span = self.d, self.d.window.span
        result = np.full(self.size, NEVER)
        for lane in range(self.lanes):
            result = np.maximum(result, self.state[lane])
        for rank in np.flatnonzero(span.present).tolist():
            end = int(span.end[rank])
            low, high = d.window.bounds[rank : rank + 2]
            rows = np.arange(low, high)
            busy = ON_STREAM[d.kind[rows]] & (d.end[rows] == end) & WORK[d.kind[rows]]
            if not bool(busy.any()):  # the step ends with its host
                before = d.sync_before(rank, end)
                if before >= 0 and int(d.end[d.syncs[before]]) <= self.begin:
                    before = -1
                result = np.maximum(result, self._advance(self.host[before + 1], end - self._base(before)))
        return result

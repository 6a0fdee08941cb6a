"""Work on one GPU during one stretch of time, and the reasons for idle time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phantora.trace.analysis.interval_scan import Sweep, sweep
from phantora.trace.analysis.report import Times
from phantora.trace.analysis.windows import Columns, code, kind_mask
from phantora.trace.schema import COMMUNICATION_KINDS, COPY_KINDS, DEVICE_KINDS

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_DEVICE, _COMMUNICATION, _COPY = (kind_mask(k) for k in (DEVICE_KINDS, COMMUNICATION_KINDS, COPY_KINDS))
_READ = ("kind", "stream", "start", "end", "launch", "ready", "name", "op", "shape", "comm", "last_rank")  # on GPUs
_KERNEL, _COLLECTIVE, _SYNC = code("kernel"), code("collective"), code("sync")


@dataclass(frozen=True)
class NextRow:
    """The first row that starts after a stretch; launch -1 when unknown."""

    start: int
    launch: int
    stream: int


@dataclass(kw_only=True)
class Occupancy:
    """Device rows of one rank, and the layers of work that they make in [begin, end)."""

    begin: int
    end: int
    device: Columns
    syncs: Columns
    sweep: Sweep
    compute: Mask
    transfer: Mask
    late: Mask
    """A collective's kernel waits for its last rank."""
    bubble: Mask
    """A send or receive waits for its partner."""
    copy: Mask

    @property
    def communication(self) -> Mask:
        """Time with a collective or a transfer on the GPU, moving bytes or waiting."""
        return self.transfer | self.late | self.bubble


def occupancy(rows: Columns, begin: int, end: int) -> Occupancy:
    """Occupancy by one rank's `rows`, which may reach beyond [begin, end)."""
    mask = _DEVICE[rows["kind"]]
    device = {name: rows[name][mask] for name in _READ if name in rows}
    mask = rows["kind"] == _SYNC
    syncs = {name: rows[name][mask] for name in ("start", "end")}
    kind, start, stop = device["kind"], device["start"], device["end"]
    ready = np.clip(device["ready"], start, stop)
    kernel, copies, communication = kind == _KERNEL, _COPY[kind], _COMMUNICATION[kind]
    collective = kind == _COLLECTIVE
    other = communication & ~collective
    cut = sweep(
        [
            (start[kernel], stop[kernel]),
            (ready[communication], stop[communication]),
            (start[collective], ready[collective]),
            (start[other], ready[other]),
            (start[copies], stop[copies]),
        ],
        begin,
        end,
    )
    compute, transfer, late, bubble, copy = cut.active
    return Occupancy(
        begin=begin,
        end=end,
        device=device,
        syncs=syncs,
        sweep=cut,
        compute=compute,
        transfer=transfer,
        late=late,
        bubble=bubble,
        copy=copy,
    )


def times(o: Occupancy, idle: Idle) -> Times:
    """The split of the stretch's time; flops and memory are left to others."""
    cut, communication = o.sweep, o.communication
    either = o.compute | communication
    result = Times(
        time=o.end - o.begin,
        compute=cut.time(o.compute),
        communication=cut.time(communication),
        overlapped=cut.time(o.compute & communication),
        exposed=cut.time(communication & ~o.compute),
        copy=cut.time(o.copy & ~either),
        idle=float((idle.end - idle.start).sum()),
        waiting=float(_waits(o).sum()),
    )
    late = o.late & ~o.transfer & ~o.compute
    result.stalls = {
        "transfer": cut.time(o.transfer & ~o.compute),
        "late rank": cut.time(late),
        "pipeline bubble": cut.time(o.bubble & ~(o.late | o.transfer | o.compute)),
        "copy": result.copy,
        **{cause: idle.time(cause) for cause in idle.causes},
    }
    return result


def _waits(o: Occupancy) -> Ints:
    device = o.device
    mask = _COMMUNICATION[device["kind"]]
    start, end = device["start"][mask], device["end"][mask]
    ready = np.clip(device["ready"][mask], start, end)
    wait: Ints = np.clip(ready, o.begin, o.end) - np.clip(start, o.begin, o.end)
    return wait


@dataclass
class Idle:
    """Intervals in which nothing runs on a rank's GPU, ns, with what kept the next row from starting earlier."""

    start: Ints
    end: Ints
    causes: dict[str, Mask]

    def time(self, cause: str) -> float:
        """ns of the intervals with this cause."""
        mask = self.causes[cause]
        return float((self.end[mask] - self.start[mask]).sum())


def idle_time(o: Occupancy, latency: int, gap: int, following: NextRow | None) -> Idle:
    """Idle intervals of a stretch. `latency` and `gap` are the run's launch latency and kernel gap; `following` is the
    first row after it."""
    nothing = ~(o.compute | o.communication | o.copy)
    a, b = o.sweep.start[nothing], o.sweep.end[nothing]
    filled = np.flatnonzero(o.device["end"] > o.device["start"])
    order = filled[np.argsort(o.device["start"][filled], kind="stable")]
    starts, launches, streams = (o.device[column][order] for column in ("start", "launch", "stream"))
    if following is not None:
        starts, launches = np.append(starts, following.start), np.append(launches, following.launch)
        streams = np.append(streams, following.stream)
    found = np.searchsorted(starts, b)
    last = found == len(starts)
    launch = np.append(launches, -1)[found]
    start = np.append(starts, 0)[found]
    late = ~last & (launch > a)
    cost = np.where(late, np.minimum(_waited(o.syncs, a, launch), b - a), 0)
    own = _one_stream(o, a, np.append(streams, -1)[found])
    brief = ~last & ~late & ((launch + latency > a) | (start - a <= gap) | own)
    part = np.flatnonzero(cost)
    causes = {
        "host": late & (cost < b - a),
        "synchronisation": np.zeros(len(a), bool),
        "launch gap": brief,
        "dependency": ~(last | late | brief),
        "end": last,
    }
    for cause, mask in causes.items():  # the part that a wait costs is an interval of its own
        causes[cause] = np.append(mask, np.full(len(part), cause == "synchronisation"))
    return Idle(np.append(a + cost, a[part]), np.append(b, (a + cost)[part]), causes)


def _one_stream(o: Occupancy, begin: Ints, stream: Ints) -> Mask:
    """Whether the last row before each `begin` is of the next row's `stream`: no other stream's event is behind the
    gap. Before the stretch's first end, whether all of its rows are."""
    order = np.argsort(o.device["end"], kind="stable")
    ends, streams = o.device["end"][order], o.device["stream"][order]
    before = np.searchsorted(ends, begin, "right") - 1
    alone = len(streams) > 0 and bool((streams == streams[0]).all())
    first = np.full(len(begin), -1, streams.dtype) if not alone else np.full(len(begin), streams[0])
    same: Mask = np.where(before < 0, first, streams[np.maximum(before, 0)] if len(streams) else first) == stream
    return same


def _waited(syncs: Columns, begin: Ints, end: Ints) -> Ints:
    """ns of the waits that end between each `begin` and `end`: without them the host had launched so much earlier."""
    order = np.argsort(syncs["end"], kind="stable")
    ends, whole = syncs["end"][order], np.append(0, np.cumsum((syncs["end"] - syncs["start"])[order]))
    first, last = np.searchsorted(ends, begin, "left"), np.searchsorted(ends, end, "right")
    found: Ints = np.maximum(whole[last] - whole[np.minimum(first, last)], 0)
    return found


def first_row(o: Occupancy) -> NextRow | None:
    """The earliest device row of the stretch."""
    inside = o.device["start"] >= o.begin
    if not bool(inside.any()):
        return None
    at = int(np.flatnonzero(inside)[np.argmin(o.device["start"][inside])])
    return NextRow(*(int(o.device[column][at]) for column in ("start", "launch", "stream")))

"""What a run spent its time on, from the log alone, in one pass with bounded memory.

Terms, as HolisticTraceAnalysis has them: *compute* is the time in which at least one kernel that
is not communication runs; *communication* the time in which at least one NCCL kernel does (its
wait for peers included); *overlapped* the time of both; *exposed* communication without
compute; *idle* the time in which the GPU runs nothing, copies included. *Copy* is what is left:
memcpy and memset beside neither. So compute + exposed + copy + idle is the whole.

Device time is cut at the steps' host times. Flops count in the step whose host launched them.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from phantora.errors import PhantoraError
from phantora.trace.analysis.intervals import Axis, Union
from phantora.trace.analysis.steps import Step, Steps, find_steps
from phantora.trace.reader import Batch, Log
from phantora.trace.schema import (
    COMMUNICATION_KINDS,
    DEVICE_KINDS,
    KIND_CODE,
    KINDS,
)

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass
class Times:
    """Where the time of a stretch went. Nanoseconds; means over ranks where it stands for several."""

    time: float = 0
    compute: float = 0
    communication: float = 0
    overlapped: float = 0
    exposed: float = 0
    copy: float = 0
    idle: float = 0
    waiting: float = 0
    """Part of the NCCL kernels' time that passed before the last peer had arrived; sum over kernels."""
    flops: float = 0
    mfu: float | None = None
    peak_allocated: int = 0
    """Bytes the framework had allocated at most; the largest rank's."""
    peak_reserved: int = 0

    @property
    def overlap(self) -> float | None:
        """Share of communication that compute hides."""
        return self.overlapped / self.communication if self.communication else None


@dataclass
class StepSummary:
    number: int
    name: str
    start: int
    end: int
    times: Times


@dataclass
class RankSummary:
    rank: int
    gpu: Times
    """From the rank's first device activity to its last."""
    steps: list[StepSummary] = field(default_factory=list)
    by_class: dict[str, float] = field(default_factory=dict)
    """Sum of device time by class of work, waits for peers left out."""
    by_provenance: dict[str, float] = field(default_factory=dict)


@dataclass
class Summary:
    path: str
    complete: bool
    metadata: dict[str, Any]
    trailer: dict[str, Any]
    rows: int
    step_source: str
    """``profiler``, ``optimizer`` or ``run``."""
    ranks: list[RankSummary]
    steps: list[StepSummary]
    """Over ranks: times are means, memory is the largest rank's."""
    steady: Times
    """Mean over steps without the first, which pays for start-up (over all if there is one)."""
    by_class: dict[str, float]
    """Shares, summing to 1."""
    by_provenance: dict[str, float]


def to_json(summary: Summary) -> str:
    data = asdict(summary)
    data["steady"]["overlap"] = summary.steady.overlap
    for step, row in zip(summary.steps, data["steps"], strict=True):
        row["times"]["overlap"] = step.times.overlap
    for rank, entry in zip(summary.ranks, data["ranks"], strict=True):
        entry["gpu"]["overlap"] = rank.gpu.overlap
    return json.dumps(data, indent=1)


# Which unions are summed, and of which kinds.
_UNIONS: dict[str, tuple[str, ...]] = {
    "compute": ("kernel",),
    "communication": COMMUNICATION_KINDS,
    "either": ("kernel", *COMMUNICATION_KINDS),
    "any": DEVICE_KINDS,
}
_COLUMNS = ("kind", "rank", "start", "end", "launch", "ready", "cls", "provenance", "flops", "bytes", "value")


class _Sums:
    """Everything that is added up per segment of the axis."""

    def __init__(self, log: Log, ranks: list[int], steps: Steps, span: int) -> None:
        self.ranks = ranks
        cuts = [(i, t) for i, rank in enumerate(ranks) for s in steps.of_rank[rank] for t in (s.start, s.end)]
        self.axis = Axis(len(ranks), span, cuts)
        self.unions = {name: Union(self.axis) for name in _UNIONS}
        self.flops: Floats = np.zeros(self.axis.segments)
        self.waiting: Floats = np.zeros(self.axis.segments)
        # Slot 0 holds what has no class or no provenance.
        self.by_class: Floats = np.zeros((len(ranks), 1 + len(log.words("cls"))))
        self.by_provenance: Floats = np.zeros((len(ranks), 1 + len(log.words("provenance"))))
        self.first: Ints = np.full(len(ranks), span)
        self.last: Ints = np.zeros(len(ranks), np.int64)
        self.peaks = [np.zeros(self.axis.segments, np.int64) for _ in range(2)]  # allocated, reserved
        self.lasts = [np.full(self.axis.segments, -1, np.int64) for _ in range(2)]
        self.rows = 0
        self._position = np.full(max(ranks, default=0) + 1, -1, np.int64)
        self._position[ranks] = np.arange(len(ranks))
        self._device = _kind_mask(DEVICE_KINDS)
        self._communication = _kind_mask(COMMUNICATION_KINDS)
        self._members = {name: _kind_mask(kinds) for name, kinds in _UNIONS.items()}
        self._latest_end = np.full(len(ranks), np.iinfo(np.int64).max)

    def add_before(self, batch: Batch) -> None:
        """Adds a batch; batches come from the last to the first."""
        self.rows += len(batch)
        order = np.argsort(batch["rank"], kind="stable")
        columns = {name: values[order] for name, values in batch.columns.items()}
        rank = self._position[columns["rank"]]
        self._check_order(rank, columns["end"])
        device = self._device[columns["kind"]]
        self._add_memory(rank, columns)
        columns = {name: values[device] for name, values in columns.items()}
        self._add_device(rank[device], columns)

    def _check_order(self, rank: Ints, end: Ints) -> None:
        if bool(np.any(end > self._latest_end[rank])) or bool(
            np.any((end[1:] < end[:-1]) & (rank[1:] == rank[:-1]))
        ):
            raise PhantoraError(
                "the log's rows are not in order of their end; it was not written by Phantora"
            )
        self._latest_end[rank[::-1]] = end[::-1]

    def _add_device(self, rank: Ints, columns: dict[str, npt.NDArray[Any]]) -> None:
        if not len(rank):
            return
        axis, kind = self.axis, columns["kind"]
        start, end = axis.at(rank, columns["start"]), axis.at(rank, columns["end"])
        for name, union in self.unions.items():
            member = self._members[name][kind]
            union.add_before(rank[member], start[member], end[member])
        np.minimum.at(self.first, rank, columns["start"])
        np.maximum.at(self.last, rank, columns["end"])
        launch = np.where(columns["launch"] >= 0, columns["launch"], columns["start"])
        segment = axis.segment(axis.at(rank, launch))
        self.flops += np.bincount(segment, columns["flops"], axis.segments)
        begin = np.where(
            self._communication[kind],
            np.clip(columns["ready"], columns["start"], columns["end"]),
            columns["start"],
        )
        self.waiting += np.bincount(axis.segment(start), begin - columns["start"], axis.segments)
        work = (columns["end"] - begin).astype(np.float64)
        for column, sums in (("cls", self.by_class), ("provenance", self.by_provenance)):
            width = sums.shape[1]
            sums += np.bincount(rank * width + columns[column] + 1, work, sums.size).reshape(sums.shape)

    def _add_memory(self, rank: Ints, columns: dict[str, npt.NDArray[Any]]) -> None:
        rows = np.flatnonzero(columns["kind"] == KIND_CODE["memory"])
        if not len(rows):
            return
        segment = self.axis.segment(self.axis.at(rank[rows], columns["end"][rows]))
        for values, peak, last in zip(
            (columns["value"], columns["bytes"]), self.peaks, self.lasts, strict=True
        ):
            np.maximum.at(peak, segment, values[rows])
            latest = np.full_like(last, -1)
            latest[segment] = values[rows]  # rows of a segment in order: the last one stays
            last[:] = np.where(last >= 0, last, latest)

    def finish(self) -> None:
        """Carries each rank's level of memory into the segments that it enters with."""
        edges = self.axis.edges
        for peak, last in zip(self.peaks, self.lasts, strict=True):
            level = 0
            for i in range(self.axis.segments):
                if edges[i] % self.axis.span == 0:
                    level = 0
                peak[i] = max(peak[i], level)
                level = int(last[i]) if last[i] >= 0 else level

    def times(self, part: slice, time: int, peak: float | None) -> Times:
        length = {name: int(union.length[part].sum()) for name, union in self.unions.items()}
        overlapped = length["compute"] + length["communication"] - length["either"]
        flops = float(self.flops[part].sum())
        return Times(
            time=time,
            compute=length["compute"],
            communication=length["communication"],
            overlapped=overlapped,
            exposed=length["communication"] - overlapped,
            copy=length["any"] - length["either"],
            idle=time - length["any"],
            waiting=float(self.waiting[part].sum()),
            flops=flops,
            mfu=flops / (time * 1e-9 * peak) if peak and time else None,
            peak_allocated=int(self.peaks[0][part].max(initial=0)),
            peak_reserved=int(self.peaks[1][part].max(initial=0)),
        )


def _kind_mask(kinds: Collection[str]) -> npt.NDArray[np.bool_]:
    return np.array([kind in kinds for kind in KINDS])


def summarize(
    log: Log, ranks: Collection[int] | None = None, steps: Collection[int] | None = None
) -> Summary:
    """The summary of `ranks` and of the steps numbered `steps` (all without)."""
    log.require_rows()
    found = find_steps(log, ranks)
    chosen = sorted(found.of_rank)
    if not chosen:
        raise PhantoraError(
            f"{log.path}: no row of the ranks asked for; the run had {log.metadata.world_size} ranks"
        )
    if steps is not None:
        found = Steps(
            found.source, {r: [s for s in own if s.number in steps] for r, own in found.of_rank.items()}
        )
        if not found.numbers():
            have = _ranges(find_steps(log, ranks).numbers())
            raise PhantoraError(f"{log.path}: no such steps; the log has steps {have}")
    # Rows are in order of end, so the last row is the latest.
    span = int(log.batch(log.num_batches - 1, ("end",))["end"][-1]) + 1
    sums = _Sums(log, chosen, found, span)
    for batch in log.batches(_COLUMNS, ranks=ranks, reverse=True):
        sums.add_before(batch)
    sums.finish()
    peak = log.metadata.peak()
    summaries = [
        _rank_summary(log, sums, i, rank, found.of_rank[rank], peak) for i, rank in enumerate(chosen)
    ]
    totals = _totals(summaries, peak)
    return Summary(
        path=log.path,
        complete=log.complete,
        metadata=asdict(log.metadata),
        trailer=log.trailer,
        rows=sums.rows,
        step_source=found.source,
        ranks=summaries,
        steps=totals,
        steady=_mean([s.times for s in (totals[1:] or totals)], peak),
        by_class=_shares([s.by_class for s in summaries]),
        by_provenance=_shares([s.by_provenance for s in summaries]),
    )


def _rank_summary(
    log: Log, sums: _Sums, i: int, rank: int, steps: list[Step], peak: float | None
) -> RankSummary:
    first, last = int(sums.first[i]), int(sums.last[i])
    whole = sums.axis.segment_between(i, 0, sums.axis.span)
    summary = RankSummary(rank, sums.times(whole, max(0, last - first), peak))
    for step in steps:
        part = sums.axis.segment_between(i, step.start, step.end)
        times = sums.times(part, step.end - step.start, peak)
        summary.steps.append(StepSummary(step.number, step.name, step.start, step.end, times))
    for column, values, target in (
        ("cls", sums.by_class[i], summary.by_class),
        ("provenance", sums.by_provenance[i], summary.by_provenance),
    ):
        named = zip(["unknown", *log.words(column)], values.tolist(), strict=True)
        target.update({name: value for name, value in named if value})
    return summary


def _totals(ranks: list[RankSummary], peak: float | None) -> list[StepSummary]:
    steps: dict[int, list[StepSummary]] = {}
    for rank in ranks:
        for step in rank.steps:
            steps.setdefault(step.number, []).append(step)
    totals = []
    for number, own in sorted(steps.items()):
        times = _mean([step.times for step in own], peak)
        totals.append(
            StepSummary(number, own[0].name, min(s.start for s in own), max(s.end for s in own), times)
        )
    return totals


def _mean(parts: list[Times], peak: float | None) -> Times:
    if not parts:
        return Times()
    total = Times()
    for name in (
        "time",
        "compute",
        "communication",
        "overlapped",
        "exposed",
        "copy",
        "idle",
        "waiting",
        "flops",
    ):
        setattr(total, name, sum(getattr(part, name) for part in parts) / len(parts))
    total.peak_allocated = max(part.peak_allocated for part in parts)
    total.peak_reserved = max(part.peak_reserved for part in parts)
    total.mfu = total.flops / (total.time * 1e-9 * peak) if peak and total.time else None
    return total


def _shares(parts: list[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + value
    whole = sum(total.values())
    return {
        name: value / whole for name, value in sorted(total.items(), key=lambda item: (-item[1], item[0]))
    }


def _ranges(numbers: list[int]) -> str:
    return f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])

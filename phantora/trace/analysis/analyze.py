"""Makes the report of a log: one pass, backwards, a window of time at once."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from phantora.errors import PhantoraError
from phantora.trace.analysis.annotations import Annotations
from phantora.trace.analysis.assumptions import assumptions
from phantora.trace.analysis.collectives import Collectives
from phantora.trace.analysis.communicators import group_of, groups
from phantora.trace.analysis.critical_path import CriticalPaths
from phantora.trace.analysis.data import DataTime, data_time
from phantora.trace.analysis.delays import delays, losses
from phantora.trace.analysis.energy import EnergySums
from phantora.trace.analysis.exposure import Exposures
from phantora.trace.analysis.faults import Faulty, faults
from phantora.trace.analysis.findings import findings
from phantora.trace.analysis.fold_imbalance import FoldImbalance
from phantora.trace.analysis.garbage import collections
from phantora.trace.analysis.host_memory import host_memory
from phantora.trace.analysis.host_operators import cpu_operators, host_operators
from phantora.trace.analysis.host_waits import BOUND, HostWaits
from phantora.trace.analysis.hosts import OtherHosts, other_hosts
from phantora.trace.analysis.links import Links
from phantora.trace.analysis.memory import memory, peak_and_growth
from phantora.trace.analysis.memory_fit import fit_of
from phantora.trace.analysis.mfu import MfuBasis
from phantora.trace.analysis.occupancy import NextRow, first_row, idle_time, occupancy, times
from phantora.trace.analysis.outlier_steps import ONCE
from phantora.trace.analysis.phases import phases
from phantora.trace.analysis.races import races
from phantora.trace.analysis.recompiles import recompiles
from phantora.trace.analysis.report import (
    CAUSES,
    UNEQUAL,
    Details,
    Exposure,
    Headline,
    HostBound,
    RankReport,
    Report,
    StepTimes,
    Times,
    shared_gpus,
)
from phantora.trace.analysis.slower_ranks import SlowerRanks
from phantora.trace.analysis.spread import spread_of
from phantora.trace.analysis.steps import Step, Steps, find_steps
from phantora.trace.analysis.stream_names import stream_names
from phantora.trace.analysis.streams import Streams
from phantora.trace.analysis.throughput import Volume
from phantora.trace.analysis.uncertainty import Bar, Uncertainty
from phantora.trace.analysis.units import duration
from phantora.trace.analysis.unmeasured import UnmeasuredOperators
from phantora.trace.analysis.watermarks import memory_levels
from phantora.trace.analysis.windows import Span, Window, spans_of, windows
from phantora.trace.analysis.work import WorkSums
from phantora.trace.reader import Log
from phantora.trace.schema import DEVICE_KINDS
from phantora.wire.names import RECOMPUTED

Ints = npt.NDArray[np.int64]

_OF_TIMES = ("kind", "rank", "stream", "start", "end", "launch", "ready", "link")
_OF_WORK = ("name", "op", "cls", "provenance", "flops", "bytes", "value", "shape", "comm", "error", "last_rank")
_SHORT_COLUMNS = (*_OF_TIMES, *_OF_WORK)
_COLUMNS = (*_SHORT_COLUMNS, "id", "algorithm", "seq")
_SHORT_KINDS = (*DEVICE_KINDS, "sync", "power")
_LIMITED = 0.95  # of the power cap: a GPU that draws less on average is not slowed by it
_TIME_COLUMNS = (*_OF_TIMES, "id")
MOST_JOINS = 100_000  # for which gains are computed unasked: about a second
Progress = Callable[[int, int], None]


class Gatherer(Protocol):
    """Adds up what windows hold; they come from the last to the first."""

    def begin(self, annotations: Annotations) -> None:
        """Before the first window: the annotations of the ranks that windows tell of."""

    def add(self, window: Window) -> None:
        """Takes what it needs from the rows of one step."""


@dataclass(frozen=True)
class Filters:
    """The part of a log to report on; None means all. `time` in ns: that stretch counts as the one step. `by` is the
    mark of the steps (``steps.SOURCES``, ``annotation:NAME``). Without `settle` the run's own steps count, also if the
    power limiters have not settled."""

    ranks: frozenset[int] | None = None
    steps: frozenset[int] | None = None
    time: tuple[int, int] | None = None
    by: str | None = None
    settle: bool = True


def analyze(
    log: Log,
    filters: Filters = Filters(),
    details: bool = True,
    progress: Progress | None = None,
    also: Sequence[Gatherer] = (),
    paths: bool = True,
) -> Report:
    """The report of `log`. Without `details` the times alone, which cost half; without `paths` no critical paths, which
    take a third and nothing else needs.

    `progress` is called with the number of windows done and of all; `also` sees every window too.
    Raises PhantoraError for filters that leave nothing."""
    log.require_rows()
    steps = _steps(log, filters)
    ranks = sorted(steps.of_rank)
    # Rows are in order of end, so the last row is the latest.
    end = int(log.batch(log.num_batches - 1, ("end",))["end"][-1])
    outside = filters.time is None and filters.steps is None
    spans = spans_of(steps, ranks, -1, end, outside)
    passed = _Pass(log, ranks, steps, spans, details, filters)
    for gatherer in also:
        gatherer.begin(passed.annotations)
    if details and paths:
        passed.follow_paths()
    columns, kinds = (_COLUMNS, None) if details else (_SHORT_COLUMNS, _SHORT_KINDS)
    for window in windows(log, ranks, spans, columns, kinds):
        passed.add(window)
        for gatherer in also:
            gatherer.add(window)
        if progress:
            progress(len(spans) - window.index, len(spans))
    return passed.report()


def steady_times(log: Log, steps: Steps) -> dict[str, Any]:
    """Times of a steady step by use, as :func:`_settled` reads them, from device rows and waits alone; ``watts`` of a
    GPU."""
    ranks = sorted(steps.of_rank)
    end = int(log.batch(log.num_batches - 1, ("end",))["end"][-1])
    spans = spans_of(steps, ranks, -1, end, True)
    gap = max(log.metadata.kernel_gap_ns, log.metadata.crowded_gap_ns)
    following: list[NextRow | None] = [None] * len(ranks)
    found: list[Times] = []
    energy = EnergySums(log, ranks)
    for window in windows(log, ranks, spans, (*_TIME_COLUMNS, "value"), (*DEVICE_KINDS, "sync", "power")):
        parts: list[Times] = []
        for position in np.flatnonzero(window.span.present).tolist():
            begin, stop = int(window.span.start[position]), int(window.span.end[position])
            o = occupancy(window.of_rank(position), max(begin, 0), stop)
            parts.append(times(o, idle_time(o, log.metadata.launch_latency_ns, gap, following[position])))
            following[position] = first_row(o) or following[position]
        if window.span.steady:
            found.append(mean_times(parts, None))
            energy.add(window)
    steady = mean_times(found if steps.waiting else _middle_half(found), None)
    return {name: getattr(steady, name) for name in _TIMES} | {"stalls": steady.stalls, "watts": energy.watts()}


def _steps(log: Log, filters: Filters) -> Steps:
    found = find_steps(log, filters.ranks, filters.by)
    if not filters.settle:
        found = found.unsettled()
    if not found.of_rank:
        raise PhantoraError(f"{log.path}: no rows of these ranks; the log has ranks 0 to {log.metadata.world_size - 1}")
    if filters.time is not None:
        begin, end = filters.time
        last = int(log.batch(log.num_batches - 1, ("end",))["end"].max())
        if begin >= last:
            raise PhantoraError(f"{log.path}: nothing runs from {duration(begin)} on; the log ends at {duration(last)}")
        name = f"{begin / 1e6:g} to {end / 1e6:g} ms"
        return Steps(
            source="time", of_rank={rank: [Step(number=1, name=name, start=begin, end=end)] for rank in found.of_rank}
        )
    if filters.steps is not None:
        kept = {r: [s for s in own if s.number in filters.steps] for r, own in found.of_rank.items()}
        if not any(kept.values()):
            have = found.numbers()
            raise PhantoraError(f"{log.path}: no such steps; the log has steps {_ranges(have)}")
        return replace(found, of_rank=kept)
    return found


class _Pass:
    """Sums over the windows of a log."""

    def __init__(
        self, log: Log, ranks: list[int], steps: Steps, spans: list[Span], details: bool, filters: Filters
    ) -> None:
        self.log, self.ranks, self.steps, self.spans, self.details = log, ranks, steps, spans, details
        self.whole = filters == Filters(by=filters.by)
        self.unfiltered = filters == Filters()
        self.meta = log.metadata
        self.times: dict[tuple[int, int], Times] = {}  # (span, rank position)
        self.following: list[NextRow | None] = [None] * len(ranks)
        self.first: Ints = np.full(len(ranks), np.iinfo(np.int64).max)
        self.last: Ints = np.zeros(len(ranks), np.int64)
        shape = (len(spans), len(ranks))
        self.flops, self.recomputed = np.zeros(shape), np.zeros(shape)
        self.levels = memory_levels(log, ranks, steps)
        self.rows = 0
        self.annotations = Annotations(log, ranks)
        self.work = WorkSums(log, self.annotations, len(ranks))
        self.groups = groups(log)
        self.volume, self.uncertainty = Volume(log, self.groups, ranks), Uncertainty(log)
        self.uneven = FoldImbalance(log, self.groups)
        self.energy = EnergySums(log, ranks)
        self.unmeasured = UnmeasuredOperators(log, self.annotations)
        self.exposures = Exposures(log)
        self.host_waits = HostWaits(self.annotations)
        self.slower = SlowerRanks(len(ranks))
        if details:
            self.collectives = Collectives(ranks)
            self.links = Links(log)
            self.streams = Streams(ranks)
        self.paths: CriticalPaths | None = None

    def follow_paths(self) -> None:
        """Critical paths of the steps shall be in the details."""
        joins = MOST_JOINS if len(self.spans) > 1 else None
        self.paths = CriticalPaths(self.log, self.ranks, self.groups, _typical(self.spans), joins)

    def add(self, window: Window) -> None:
        self.rows += int(window.own.sum())
        self._add_flops(window)
        span = window.span
        for position in np.flatnonzero(span.present).tolist():
            self._add_rank(window, position)
        if span.steady:
            for gatherer in (self.work, self.volume, self.uncertainty, self.uneven, self.unmeasured, self.energy):
                gatherer.add(window)
        if self.details:
            self.streams.add(window)
            before = self.spans[window.index - 1].last if window.index else -1
            if self.paths is not None and span.step is not None:
                self.paths.add(window)
            if span.steady:
                self.collectives.add(window, before)
                self.links.add(window)

    def _add_rank(self, window: Window, position: int) -> None:
        begin, end = int(window.span.start[position]), int(window.span.end[position])
        rows = window.of_rank(position)
        o = occupancy(rows, max(begin, 0), end)
        following = self.following[position]
        gap = max(self.meta.kernel_gap_ns, self.meta.crowded_gap_ns)
        idle = idle_time(o, self.meta.launch_latency_ns, gap, following)
        self.times[window.index, position] = times(o, idle)
        self.following[position] = first_row(o) or following
        if len(o.device["end"]):
            inside = (o.device["end"] > begin) & (o.device["start"] < end)
            if bool(inside.any()):
                self.first[position] = min(self.first[position], max(begin, int(o.device["start"][inside].min())))
                self.last[position] = max(self.last[position], min(end, int(o.device["end"][inside].max())))
        if window.span.steady:
            self.exposures.add(o)
            self.host_waits.add(position, idle)
            self.slower.add(position, o)

    def _add_flops(self, window: Window) -> None:
        """Flops count where their kernel ends: in the step that its iteration's work makes up."""
        own = window.own & (window["flops"] > 0)
        rank, flops = window["rank"][own], window["flops"][own]
        again = self.annotations.within(RECOMPUTED, rank, window["launch"][own])
        self.flops[window.index] = np.bincount(rank, flops, len(self.ranks))
        self.recomputed[window.index] = np.bincount(rank[again], flops[again], len(self.ranks))

    def _has_flops(self) -> bool:
        """A trace without shapes has no flops, or those of some operators only."""
        return ("shapes" not in self.meta.missing or bool(self.flops.any())) and self.work.knows_flops()

    # ------------------------------------------------------------------ report

    def report(self) -> Report:
        peak = self.meta.peak() if not self.meta.of_real or self._has_flops() else None
        ranks = [self._rank(position, peak) for position in range(len(self.ranks))]
        totals = _totals(ranks, peak)
        parts = [s.times for s in _steady(totals)]
        mixed = self.steps.waiting
        waits = _waits(parts) if self.meta.of_real or mixed else None
        steady = mean_times(_middle_half(parts) if waits is None and not mixed else parts, peak)
        if self.steps.predicted:
            steady = _settled(self.log, steady, peak)
        hosts = self._hosts(steady)
        simulated, host_time = steady, self._host_time()
        data = data_time(self.log.trailer, steady.time, self._bar(steady, host_time, hosts), self.steps)
        steady = data.added(steady)
        _set_mfu(steady, peak)
        exposure = self._exposure(steady)
        slower = self.slower.report(ranks)
        for rank in ranks:
            rank.slower = slower.get(rank.rank, 0.0)
        report = Report(
            path=self.log.shown,
            complete=self.log.complete and not self.log.trailer.get("status"),
            failure=self.log.failure,
            metadata=asdict(self.meta),
            trailer=self.log.trailer,
            rows=self.log.num_rows if self.whole else self.rows,
            step_source=self.steps.source,
            may_be_layers=self.steps.may_be_layers,
            host_time=host_time,
            headline=self._headline(totals, steady, waits, data, hosts),
            ranks=ranks,
            steps=totals,
            steady=steady,
            by_class=_shares([rank.by_class for rank in ranks]),
            by_provenance=_shares([rank.by_provenance for rank in ranks]),
            exposure=exposure,
            host_waits=data.waits(self.host_waits.report(simulated, self.log, self.ranks)),
            delays=delays(
                steady,
                exposure,
                self.exposures.late,
                slower,
                self._waits_unknown(exposure),
                self.log.metadata.gpu_of,
                self.log.trailer.get("without_stragglers", {}),
            ),
            losses=losses(steady, self.work.kernel_classes(), peak),
            mfu=self._mfu(peak),
            unmeasured=self.unmeasured.report(),
            assumptions=assumptions(self.log),
            races=races(self.log),
            recompiles=recompiles(self.log, self.ranks),
            garbage=collections(self.log, self.steps),
            faults=self._faults(),
            shared_gpus=shared_gpus(self.log.metadata),
            phases=phases(self.log, self.ranks, totals[0].end if len(totals) > 1 else 0),
        )
        report.peak, report.growth = peak_and_growth(self.log, self.ranks, self.steps, self.annotations)
        if self.steps.source == "run" and not report.by_class:
            report.host_operators = host_operators(self.log, self.ranks)
            report.without_gpu = bool(report.host_operators) or (self.unfiltered and not self.log.out_of_memory)
            if report.without_gpu:
                _without_gpu(report)
        if not report.without_gpu:
            report.host_operators = cpu_operators(self.annotations)
        if self.details:
            report.details = self._details(report)
        return report

    def _starting(self, totals: list[StepTimes], steady: Times) -> bool:
        """No step is without start-up: the first alone, or of two steps the second, if it is host-bound, which may
        still build communicators and load modules."""
        second = [step.note for step in totals] == ["start-up", ""] and not self.meta.of_real
        return self.steps.starting or (second and steady.host >= BOUND * steady.time)

    def _hosts(self, steady: Times) -> OtherHosts | None:
        if not self.unfiltered:
            return None
        return other_hosts(self.log.trailer, self.steps.identical(), steady.time, self.steps.waiting)

    def _bar(self, steady: Times, host_time: float, hosts: OtherHosts | None) -> Bar | None:
        """Error bar of the simulated step; what was seen has none."""
        if self.meta.real:
            return None
        on_hosts = hosts.relative(steady.time) if hosts else None
        if self.meta.of_real:
            on_hosts = (0.0, 0.0)  # the host's times are the real run's own
        return self.uncertainty.report(steady, host_time, on_hosts, self.uneven.report() or 0.0)

    def _headline(
        self, totals: list[StepTimes], steady: Times, waits: HostBound | None, data: DataTime, hosts: OtherHosts | None
    ) -> Headline:
        times = sorted(step.times.time + data.ns for step in _steady(totals))
        apart: dict[str, list[int]] = {}
        for step in totals:
            if step.note:
                apart.setdefault(step.note, []).append(step.number)
        unequal = waits is None and times[-1] > UNEQUAL * times[0]
        throughput = self.volume.report(steady.time, _middle_numbers(totals) if unequal else ())
        watts, short = self._settled_power()
        bar = data.bar
        return Headline(
            step_time=steady.time,
            waits=waits,
            lowest=times[0],
            highest=times[-1],
            steps=0 if self._starting(totals, steady) else len(times),
            mean=_mean(totals, steady.time - data.ns) + data.ns,
            settled=not self.steps.predicted,
            short=short,
            error=bar.below if bar else None,
            error_above=bar.above if bar else None,
            widest=bar.widest if bar else "",
            uneven=self.uneven.report(),
            hosts=None if data.ns else hosts,
            spread=spread_of(self.log.trailer) if self.unfiltered and not data.ns else None,
            mfu=steady.mfu,
            hfu=steady.hfu,
            throughput=throughput,
            energy=None if data.ns else self.energy.report(watts, steady.time, throughput),
            without_data=steady.time - data.ns if data.ns else None,
            apart=apart,
        )

    def _settled_power(self) -> tuple[float | None, float]:
        """W of a GPU when its power limiter has settled, None if unknown; ns by which the run is too short for that."""
        watts, short = self.energy.watts(), self.steps.short_ns
        if self.steps.predicted:
            return self.log.trailer["settled"]["steady"].get("watts"), short
        cap = self.meta.extra.get("power_cap")
        if watts is None or not cap:
            return (None if short else watts), short
        if watts < _LIMITED * cap:
            return watts, 0.0  # power limits nothing
        if watts > cap and not short:  # nothing was simulated again (--no-recording)
            own = [
                step for steps in self.steps.of_rank.values() for step in steps if step.number in self.steps.steady()
            ]
            passed = max(step.end for step in own) - min(step.start for step in own)
            short = max(0.0, float(self.meta.extra["settling_ns"]) - passed)
        return (None if short else min(watts, float(cap))), short

    def _exposure(self, steady: Times) -> list[Exposure]:
        """The headline's exposed transfers and waits, shared out as in all steady steps of the run."""
        counted = sum(1 for (index, _) in self.times if self.spans[index].steady)
        found = self.exposures.report(self.log, self.groups, max(1, counted))
        moved, waited = sum(e.transfer for e in found), sum(e.late_rank for e in found)
        transfer = steady.stalls.get("transfer", 0.0)
        moving = transfer / moved if moved else 1.0
        waiting = (steady.exposed - transfer) / waited if waited else 1.0
        return [
            replace(e, exposed=moving * e.transfer + waiting * e.late_rank, late_rank=waiting * e.late_rank)
            for e in found
        ]

    def _mfu(self, peak: float | None) -> MfuBasis | None:
        flops = self.work.model_flops()
        if not peak or not sum(flops.values()):
            return None
        stretches = sum(1 for (index, _) in self.times if self.spans[index].steady)
        printed, rounding = self.log.trailer.get("printed_mfu") or (None, 0.0)
        return MfuBasis(
            dtype=self.meta.mfu_dtype,
            peak=peak,
            attention=flops.get("attention", 0.0) / sum(flops.values()),
            float32=self.work.float32() / max(1, stretches),
            printed=printed,
            rounding=rounding,
        )

    def _faults(self) -> list[Faulty]:
        """Start-up is left out: it takes longer than a step anyway."""
        if self.steps.source == "run":
            return []
        own = [step for of_rank in self.steps.of_rank.values() for step in of_rank if step.note != "start-up"]
        return faults(self.log.metadata.extra, [(step.number, step.start, step.end) for step in own])

    def _waits_unknown(self, exposure: list[Exposure]) -> bool:
        """True for a real run of which some ranks have no trace, or whose collectives are not matched across ranks:
        when the others arrived is unknown."""
        unmatched = any(not group_of(self.groups, one.comm).ranks for one in exposure)
        return self.meta.real and (unmatched or len(self.meta.ranks) < self.meta.world_size)

    def _host_time(self) -> float:
        """ns that a host works for a steady step: the slowest rank's median."""
        steady = self.steps.steady()
        times = [
            [step.host_time for step in own if step.number in steady and step.host_time is not None]
            for own in self.steps.of_rank.values()
        ]
        return max((statistics.median(own) for own in times if own), default=0.0)

    def _rank(self, position: int, peak: float | None) -> RankReport:
        parts: list[Times] = []
        steps: list[StepTimes] = []
        for index, span in enumerate(self.spans):
            part = self.times.get((index, position))
            if not span.present[position]:
                continue
            start, end = int(span.start[position]), int(span.end[position])
            if part is None:
                part = Times(time=end - max(start, 0), idle=end - max(start, 0))
                part.stalls = {**dict.fromkeys(CAUSES, 0.0), "end": part.idle}
            part.flops = float(self.flops[index, position])
            part.recomputed_flops = float(self.recomputed[index, position])
            _set_mfu(part, peak)
            if span.step is not None:
                part.peak_allocated, part.peak_reserved = self.levels.of_step(position, span.step)
            parts.append(part)
            if span.step is not None:
                steps.append(
                    StepTimes(number=span.step, name=span.name, start=start, end=end, times=part, note=span.note)
                )
        by_class, by_provenance = self.work.of_rank(position)
        return RankReport(
            self.ranks[position],
            self._gpu(position, parts, peak),
            steps=steps,
            by_class=by_class,
            by_provenance=by_provenance,
        )

    def _gpu(self, position: int, parts: list[Times], peak: float | None) -> Times:
        """The sum of the parts from the first device row to the last."""
        gpu = _sum(parts)
        gpu.peak_allocated, gpu.peak_reserved = self.levels.highest(position)
        around = gpu.time - max(0, int(self.last[position] - self.first[position]))
        gpu.time -= around
        gpu.idle -= around
        # What lies around the device's rows is idle: before the first, the host had launched nothing.
        for cause in ("end", "host", "synchronisation", "launch gap", "dependency"):
            cut = min(around, gpu.stalls.get(cause, 0.0))
            gpu.stalls[cause] = gpu.stalls.get(cause, 0.0) - cut
            around -= cut
        _set_mfu(gpu, peak)
        return gpu

    def _details(self, report: Report) -> Details:
        details = Details(
            findings=[],
            kernels=self.work.kernels(),
            operators=self.work.operators(),
            classes=self.work.classes(),
            modules=self.work.modules(),
            collectives=self.collectives.report(self.log, self.groups),
            stragglers=self.collectives.stragglers(max(1, report.headline.steps)),
            streams=self.streams.report(stream_names(self.log, self.ranks)),
            links=self.links.report(),
            memory=memory(
                self.log, self.ranks, self.steps, self.annotations, self.log.out_of_memory and self.unfiltered
            ),
            fit=None,
            critical_paths=self.paths.report() if self.paths is not None else [],
            graphs="cudaGraphLaunch" in self.log.words("name"),
        )
        device_peak = int(self.log.trailer.get("device_memory_bytes", 0))
        details.fit = fit_of(
            details.memory,
            device_peak,
            self.log.out_of_memory,
            shared=bool(report.shared_gpus),
            growth=report.growth,
            host=host_memory(self.log.metadata.extra, self.log.trailer),
        )
        details.findings = findings(report, details)
        return details


def _without_gpu(report: Report) -> None:
    """A log without work of a GPU has no step and no time of a GPU."""
    report.steady, report.delays, report.steps = Times(), [], []
    report.headline = replace(report.headline, step_time=0, lowest=0, highest=0, steps=0, mean=0)
    for rank in report.ranks:
        rank.gpu, rank.steps = Times(), []


_TIMES = ("time", "compute", "communication", "overlapped", "exposed", "copy", "idle", "waiting")
_SUMMED = (*_TIMES, "flops", "recomputed_flops")


def _sum(parts: list[Times]) -> Times:
    total = Times()
    for name in _SUMMED:
        setattr(total, name, sum(getattr(part, name) for part in parts))
    for part in parts:
        for cause, value in part.stalls.items():
            total.stalls[cause] = total.stalls.get(cause, 0.0) + value
    total.peak_allocated = max((part.peak_allocated for part in parts), default=0)
    total.peak_reserved = max((part.peak_reserved for part in parts), default=0)
    return total


def _middle_half(parts: list[Times]) -> list[Times]:
    """Times between the quartiles: a single slow step does not move their mean."""
    cut = len(parts) // 4
    return sorted(parts, key=lambda part: part.time)[cut : len(parts) - cut]


def steps_of_mean(report: Report) -> set[int]:
    """Numbers of the steps whose mean is the step of `report`."""
    return _middle_numbers(report.steps) if report.headline.waits is None else {s.number for s in _steady(report.steps)}


def _middle_numbers(totals: list[StepTimes]) -> set[int]:
    """Numbers of the steady steps between the quartiles."""
    number = {id(step.times): step.number for step in _steady(totals)}
    return {number[id(times)] for times in _middle_half([step.times for step in _steady(totals)])}


def mean_times(parts: list[Times], peak: float | None) -> Times:
    """The mean of `parts`; memory is the largest."""
    total = _sum(parts)
    for name in _SUMMED:
        setattr(total, name, getattr(total, name) / max(1, len(parts)))
    total.stalls = {cause: value / max(1, len(parts)) for cause, value in total.stalls.items()}
    _set_mfu(total, peak)
    return total


def _settled(log: Log, last: Times, peak: float | None) -> Times:
    """Times of the predicted settled step by use; work and memory are those of the run's own step `last`."""
    known = log.trailer["settled"]["steady"]
    times = replace(last)
    for name in _TIMES:
        setattr(times, name, float(known[name]))
    times.stalls = {cause: float(ns) for cause, ns in known["stalls"].items()}
    _set_mfu(times, peak)
    return times


def _set_mfu(part: Times, peak: float | None) -> None:
    if peak and part.time:
        most = part.time * 1e-9 * peak
        part.hfu, part.mfu = part.flops / most, (part.flops - part.recomputed_flops) / most


def _totals(ranks: list[RankReport], peak: float | None) -> list[StepTimes]:
    steps: dict[int, list[StepTimes]] = {}
    for rank in ranks:
        for step in rank.steps:
            steps.setdefault(step.number, []).append(step)
    return [
        StepTimes(
            number=number,
            name=own[0].name,
            start=min(s.start for s in own),
            end=max(s.end for s in own),
            times=mean_times([step.times for step in own], peak),
            note=own[0].note,
        )
        for number, own in sorted(steps.items())
    ]


def _steady(totals: list[StepTimes]) -> list[StepTimes]:
    return [step for step in totals if not step.note]


_WAITS, _LONGER = 0.2, 1.5  # of a step, and times the typical step: a host-bound step


def _waits(own: list[Times]) -> HostBound | None:
    """The steady steps that are longer than others because their GPU waits for the host; None if there are none."""
    found = _host_bound(own)
    if not found:
        return None
    return HostBound(len(found), len(own), sum(times.host for times in own) / sum(times.time for times in own))


def _host_bound(own: list[Times]) -> list[Times]:
    typical = sorted(times.time for times in own)[(len(own) - 1) // 2]
    return [times for times in own if times.time > _LONGER * typical and times.host > _WAITS * times.time]


def host_bound_steps(report: Report) -> set[int]:
    """Numbers of the steps that the headline counts as waiting for the host."""
    if report.headline.waits is None:
        return set()
    own = _steady(report.steps)
    waiting = {id(times) for times in _host_bound([step.times for step in own])}
    return {step.number for step in own if id(step.times) in waiting}


def _mean(totals: list[StepTimes], steady: float) -> float:
    """ns of a step, with the work that only some steps have."""
    recurring = [step.times.time for step in totals if step.note not in ONCE]
    others = [step.times.time for step in totals if step.note and step.note not in ONCE]
    return (sum(others) + (len(recurring) - len(others)) * steady) / len(recurring) if others else steady


def _shares(parts: list[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + value
    whole = sum(total.values())
    return {name: value / whole for name, value in sorted(total.items(), key=lambda item: (-item[1], item[0]))}


def _typical(spans: list[Span]) -> int | None:
    """The steady step that stands for most of the time: half of it lies in steps that are as long or longer."""
    steps = sorted((span for span in spans if span.steady), key=lambda span: (span.last - span.first, span.step))
    if not steps:
        return None
    until = np.cumsum([span.last - span.first for span in steps])
    return steps[int(np.searchsorted(2 * until, until[-1]))].step


def _ranges(numbers: list[int]) -> str:
    return f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])

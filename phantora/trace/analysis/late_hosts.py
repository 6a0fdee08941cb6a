"""A rank that is late by its host: its GPU waits for work longer than the GPUs of other ranks."""

from __future__ import annotations

from statistics import fmean, median

from phantora.trace.analysis.host_waits import BOUND, most_in
from phantora.trace.analysis.report import RankReport, Report
from phantora.trace.analysis.units import duration

_DECIDED = 0.25  # of a step


def host_waits(report: Report) -> dict[int, float]:
    """ns of a step in which the GPU of each rank has no work from its host."""
    return {one.rank: _host(one) for one in report.ranks}


def longer_wait(report: Report, rank: int) -> float:
    """ns of a step that the GPU of `rank` is host-bound longer than that of the median other rank. 0 where this is
    a small share of a step, or less than its kernels take longer."""
    waits = host_waits(report)
    others = [time for other, time in waits.items() if other != rank]
    if not others or rank not in waits:
        return 0.0
    longer = waits[rank] - median(others)
    slower = next(one.slower for one in report.ranks if one.rank == rank)
    return longer if longer >= BOUND * report.steady.time and longer > slower else 0.0


def late_host(report: Report) -> int | None:
    """The rank that causes most of the step's waits for hosts alone; None if ranks wait equally."""
    waits = host_waits(report)
    rank = max(waits, key=lambda rank: waits[rank], default=-1)
    return rank if rank >= 0 and longer_wait(report, rank) > sum(waits.values()) / 2 else None


def hosts_decide(report: Report) -> bool:
    """Whether a host that is 1.5 times slower adds a quarter of the step or more: ranks wait for work that the hosts of
    others launch late."""
    hosts, time = report.headline.hosts, report.headline.step_time
    return hosts is not None and hosts.slower - time >= _DECIDED * time


def sentence(report: Report, rank: int) -> str:
    """``rank 0's GPU waits 17.2 ms of a step longer for its host than others'``, and in what; "" for a rank that is not
    late by its host."""
    longer = longer_wait(report, rank)
    where = most_in(report) if late_host(report) == rank else ""
    waits = f"rank {rank}'s GPU waits {duration(longer)} of a step longer for its host than others'{where}"
    return waits if longer else ""


def _host(rank: RankReport) -> float:
    return fmean([step.times.host for step in rank.steps if not step.note] or [0.0])

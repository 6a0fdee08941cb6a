"""Others' tools on our exports: HolisticTraceAnalysis, TraceLens and SQL in Perfetto's trace processor count as
`analyze` does."""

from __future__ import annotations

import gzip
import importlib
import logging
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from phantora.trace.analysis.analyze import Filters, analyze
from phantora.trace.analysis.communicators import collective_kind
from phantora.trace.analysis.report import Report
from phantora.trace.export import export
from phantora.trace.export.selection import Selection
from phantora.trace.reader import open_log
from tests.support import trace_processor

POINTS = 0.1
STREAM_OFFSET = 7  # Kineto's default stream


def holistic(
    log: Path,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    finer: int = 1000,
    ranks: frozenset[int] | None = None,
    steps: bool = False,
) -> Any:
    """HTA's analysis of the exported log, of all ranks or some. It cuts some stretches to whole units of the file's
    times, so it is given ns as if they were us; its threshold for brief gaps moves along (`same_as_hta`). It is shown
    `steps` where its critical path is asked for; else not, since it leaves out what lies outside of them."""
    module = importlib.import_module("hta.trace_analysis")  # late: it takes seconds
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    logging.getLogger("hta").setLevel(logging.ERROR)
    for path in export(log, str(directory) + "/", Selection(ranks=ranks)):
        lines = gzip.decompress(Path(path).read_bytes()).decode()
        scaled = re.sub(r'"(ts|dur)":([\d.e+]+)', lambda m: f'"{m[1]}":{float(m[2]) * finer:.1f}', lines)
        shown = scaled if steps else scaled.replace("ProfilerStep#", "step ")
        Path(path).write_bytes(gzip.compress(shown.encode(), 1))
    return module.TraceAnalysis(trace_dir=str(directory), include_last_profiler_step=True)


def same_as_hta(log: Path, analysis: Any, finer: int = 1000) -> Report:
    """Overlap, the split of time, kinds of kernels, kernels and idle time by stream agree, rank by rank."""
    overlap = analysis.get_comm_comp_overlap(visualize=False)
    report = analyze(open_log(log), Filters(ranks=frozenset(overlap["rank"]), by="run"))  # HTA knows no steps
    ours = {rank.rank: rank.gpu for rank in report.ranks}
    breakdown = analysis.get_temporal_breakdown(visualize=False)
    assert sorted(overlap["rank"]) == sorted(breakdown["rank"]) == sorted(ours)
    for _, row in overlap.iterrows():
        share = ours[int(row["rank"])].overlap
        assert row["comp_comm_overlap_pctg"] == pytest.approx(100 * (share or 0), abs=POINTS)
    for _, row in breakdown.iterrows():
        times = ours[int(row["rank"])]
        assert row["kernel_time(us)"] * 1000 / finer == pytest.approx(times.time, rel=1e-6, abs=1)
        assert row["idle_time_pctg"] == pytest.approx(100 * times.idle / times.time, abs=POINTS)
        assert row["compute_time_pctg"] == pytest.approx(100 * times.compute / times.time, abs=POINTS)
        rest = times.exposed + times.copy
        assert row["non_compute_time_pctg"] == pytest.approx(100 * rest / times.time, abs=POINTS)
    _same_kernels(report, analysis, finer)
    _same_idle(report, analysis, finer)
    return report


def _same_kernels(report: Report, analysis: Any, finer: int) -> None:
    kinds, kernels = analysis.get_gpu_kernel_breakdown(
        visualize=False, include_memory_kernels=False, num_kernels=10_000, duration_ratio=1.0
    )
    ours = [rank.gpu for rank in report.ranks]
    split = {row["kernel_type"]: row["sum"] * 1000 / finer for _, row in kinds.iterrows()}
    sums = {
        "COMPUTATION": sum(t.compute - t.overlapped for t in ours),
        "COMMUNICATION": sum(t.exposed for t in ours),
        "COMPUTATION overlapping COMMUNICATION": sum(t.overlapped for t in ours),
    }
    whole = sum(sums.values())
    for kind, time in sums.items():
        assert 100 * split.get(kind, 0) / whole == pytest.approx(100 * time / whole, abs=POINTS)
    assert report.details is not None
    theirs: dict[str, float] = defaultdict(float)
    for _, row in kernels.iterrows():
        theirs[row["name"]] += row["sum (us)"] * 1000 / finer
    own: dict[str, float] = defaultdict(float)
    for work in report.details.kernels:
        if not work.name.startswith(("nccl", "Memcpy", "Memset")):  # `work` has no waits; HTA is asked for no copies
            own[work.name] += work.time
    for collective in report.details.collectives:
        own[collective.name] += (collective.wait + collective.transfer) * collective.count
    assert own
    all_of_it = sum(theirs.values())
    for name, time in own.items():
        assert 100 * theirs[name] / all_of_it == pytest.approx(100 * time / all_of_it, abs=POINTS)


def same_as_tracelens(log: Path, directory: Path) -> None:
    """TraceLens' table of collectives: calls, bytes, transfer and wait by communicator and kind."""
    analyser = pytest.importorskip("TraceLens.NcclAnalyser.nccl_analyser").NcclAnalyser
    paths = export(log, str(directory / "rank-{rank}.json"))
    table = analyser(paths, len(paths)).build_df_nccl_implicit_sync_cat(detailed=True)
    report = analyze(open_log(log), Filters(by="run"))
    assert report.details is not None
    own: dict[tuple[int, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
    for one in report.details.collectives:
        sums = own[one.comm, collective_kind(one.name)]
        for place, value in enumerate((1, one.bytes, one.transfer, one.wait)):
            sums[place] += value * one.count
    kinds = {"allreduce": "all_reduce", "_allgather_base": "all_gather", "_reduce_scatter_base": "reduce_scatter"}
    found = set()
    for (group, name), calls in table.groupby(["Process Group Name", "Collective name"]):
        size = calls["Group size"].iloc[0]
        theirs = (
            len(calls),
            calls["Full msg size (MB)"].sum() * 2**20,
            calls["comm_latency"].sum() * 1000,
            calls["avg_wait_time"].sum() * 1000,
        )
        key = int(group), kinds[name]
        found.add(key)
        assert [size * value for value in theirs] == pytest.approx(own[key], rel=1e-3)
    assert found == {key for key in own if key[1] in kinds.values()}


def _same_idle(report: Report, analysis: Any, finer: int) -> None:
    assert report.details is not None
    streams = {(s.rank, s.stream + STREAM_OFFSET): s for s in report.details.streams}
    idle, _ = analysis.get_idle_time_breakdown(
        ranks=[rank.rank for rank in report.ranks], visualize=False, consecutive_kernel_delay=30 * finer
    )
    found = set()
    for _, row in idle.iterrows():
        own = streams[int(row["rank"]), int(row["stream"])]
        found.add((own.rank, own.stream + STREAM_OFFSET))
        time = getattr(own, row["idle_category"])
        assert row["idle_time"] * 1000 / finer == pytest.approx(time, abs=0.01 * 1000), row
    assert found == set(streams)


# Time in which at least one row of a kind ran: rows that start when all before have ended begin an island.
_UNION = """
select pid, sum(until - since) from (
  select pid, min(ts) since, max(te) until from (
    select *, sum(fresh) over (partition by pid order by ts, te) island from (
      select *, ts > ifnull(max(te) over (
        partition by pid order by ts, te rows between unbounded preceding and 1 preceding), -1) fresh
      from (
        select p.pid pid, s.ts ts, s.ts + s.dur te from slice s join process_track t on s.track_id = t.id
        join process p using (upid) where t.name glob 'stream *' and s.category in ({categories}) and s.dur > 0
      )
    )
  ) group by pid, island
) group by pid order by pid
"""


def same_in_sql(log: Path, directory: Path, report: Report) -> None:
    """Compute, communication and overlap of every rank, from the slices of the native timeline."""
    (path,) = export(log, str(directory / "run.perfetto"))
    kinds = ("'kernel'", "'collective', 'sendrecv'", "'kernel', 'collective', 'sendrecv'")
    compute, communication, either = (
        dict(rows) for rows in trace_processor.ask(Path(path), *(_UNION.format(categories=kind) for kind in kinds))
    )
    for place, pid in enumerate(sorted(either)):
        gpu = report.ranks[place].gpu
        assert compute.get(pid, 0) == gpu.compute
        assert communication.get(pid, 0) == gpu.communication
        assert either[pid] == gpu.compute + gpu.exposed
    assert len(either) == len(report.ranks)


def paths_fill_steps(report: Report) -> None:
    """The critical path of every step is as long as the step, and its segments follow each other."""
    assert report.details is not None and len(report.details.critical_paths) == len(report.steps)
    ends = {(step.number, rank.rank): step for rank in report.ranks for step in rank.steps}
    for path in report.details.critical_paths:
        step = ends[path.step, path.end_rank]
        assert path.length == path.time == step.end - max(step.start, 0)
        assert sum(path.by_class.values()) == path.length
        assert path.segments[-1].end == step.end
        assert all(a.end == b.start for a, b in zip(path.segments, path.segments[1:], strict=False))

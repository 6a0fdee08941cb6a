"""Chrome's JSON: well-formed, complete in Perfetto, and read by HolisticTraceAnalysis as we count."""

from __future__ import annotations

import gzip
import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.fakelog import METADATA, FakeRun, Kind, large_rows, small_run, write_rows
from support.trace_processor import ask

from phantora.trace import writer
from phantora.trace.analysis.analyze import analyze
from phantora.trace.export import export
from phantora.trace.reader import open_log


def events(path: str) -> list[dict[str, Any]]:
    content = Path(path).read_bytes()
    data = json.loads(gzip.decompress(content) if path.endswith(".gz") else content)
    assert data["distributedInfo"]["world_size"] == 2
    found: list[dict[str, Any]] = data["traceEvents"]
    return found


def test_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "BATCH_ROWS", 9)
    log = small_run().write(tmp_path / "run.arrow")
    (path,) = export(log, str(tmp_path / "run.json"))
    slices, flows, counters = ask(
        Path(path),
        "select category, name, ts, dur from slice",
        "select count(*) from flow",
        "select count(*) from counter",
    )
    assert Counter(s[0] for s in slices) == {
        "kernel": 18, "gpu_memcpy": 6, "cpu_op": 18, "user_annotation": 12, "cuda_sync": 6,
        "cuda_runtime": 24 + 12 + 6,
    }  # fmt: skip
    kernels = [s for s in slices if s[1] == "nvjet_tn"]
    assert sorted(s[2] for s in kernels)[:2] == [10_100_000] * 2
    assert {s[3] for s in kernels} == {200_000}
    assert flows == [[24]] and counters == [[36]]


def test_file_per_rank(tmp_path: Path) -> None:
    log = small_run().write(tmp_path / "run.arrow")
    paths = export(log, str(tmp_path / "out") + "/")
    assert [Path(path).name for path in paths] == ["rank0.json.gz", "rank1.json.gz"]
    for rank, path in enumerate(paths):
        own = events(path)
        assert {e["pid"] for e in own} == {rank, 10_000 + rank}
        launches = {e["args"]["correlation"]: e for e in own if e.get("name") == "cudaLaunchKernel"}
        kernels = [e for e in own if e.get("cat") == "kernel"]
        assert len(kernels) == 9
        operators = {e["args"]["External id"] for e in own if e.get("cat") == "cpu_op"}
        for kernel in kernels:
            assert launches[kernel["args"]["correlation"]]["ts"] < kernel["ts"]
            assert kernel["args"]["External id"] in operators
            assert kernel["args"]["stream"] == kernel["tid"] >= 7
        waits = [e for e in own if e.get("name") == "Stream Wait Event"]
        records = {e["args"]["correlation"] for e in own if e.get("name") == "cudaEventRecord"}
        assert {e["args"]["wait_on_cuda_event_record_corr_id"] for e in waits} == records
        assert {(e["args"]["stream"], e["args"]["wait_on_stream"]) for e in waits} == {(8, 7)}
    plain = export(log, str(tmp_path / "r-{rank}.json"))
    assert [Path(path).name for path in plain] == ["r-0.json", "r-1.json"]
    assert events(plain[1]) == events(paths[1])


def test_awkward_names(tmp_path: Path) -> None:
    run = FakeRun()
    name = 'a "quoted"\\ name\n\u00fc\u2192'
    run.add(Kind.ANNOTATION, 0, 0, 10, name)
    run.add(Kind.KERNEL, 0, 0, 10)
    run.add(Kind.COLLECTIVE, 0, 20, 30, "all_reduce")
    paths = export(run.write(tmp_path / "run.arrow"), str(tmp_path / "x.json"))
    found = {e["name"] for e in events(paths[0]) if e["ph"] == "X"}
    assert found == {name, "(unnamed)", "ncclDevKernel_all_reduce"}


def hta(directory: Path, monkeypatch: pytest.MonkeyPatch, exact: bool = True) -> Any:
    module = pytest.importorskip("hta.trace_analysis", reason="HolisticTraceAnalysis is not installed")
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1" if exact else "0")
    logging.getLogger("hta").setLevel(logging.ERROR)
    return module.TraceAnalysis(trace_dir=str(directory), include_last_profiler_step=True)


def same_as_hta(log: Path, analysis: Any) -> None:
    """Overlap and the split of time equal ours within 0.1 points on every rank."""
    ours = {rank.rank: rank.gpu for rank in analyze(open_log(log), details=False).ranks}
    overlap = analysis.get_comm_comp_overlap(visualize=False)
    breakdown = analysis.get_temporal_breakdown(visualize=False)
    assert sorted(overlap["rank"]) == sorted(breakdown["rank"]) == sorted(ours)
    for _, row in overlap.iterrows():
        share = ours[int(row["rank"])].overlap
        assert share is not None
        assert row["comp_comm_overlap_pctg"] == pytest.approx(100 * share, abs=0.1)
    for _, row in breakdown.iterrows():
        times = ours[int(row["rank"])]
        assert row["kernel_time(us)"] == pytest.approx(times.time / 1000, rel=1e-3)
        assert row["idle_time_pctg"] == pytest.approx(100 * times.idle / times.time, abs=0.1)
        assert row["compute_time_pctg"] == pytest.approx(100 * times.compute / times.time, abs=0.1)
        rest = times.exposed + times.copy
        assert row["non_compute_time_pctg"] == pytest.approx(100 * rest / times.time, abs=0.1)


def same_kinds_as_hta(log: Path, analysis: Any) -> None:
    """Its split by kind of kernel; it cuts every stretch to whole microseconds, so for logs of such only."""
    ours = {rank.rank: rank.gpu for rank in analyze(open_log(log), details=False).ranks}
    kinds, _ = analysis.get_gpu_kernel_breakdown(visualize=False, include_memory_kernels=False)
    split = {row["kernel_type"]: row["sum"] for _, row in kinds.iterrows()}
    sums = {
        "COMPUTATION": sum(t.compute - t.overlapped for t in ours.values()),
        "COMMUNICATION": sum(t.exposed for t in ours.values()),
        "COMPUTATION overlapping COMMUNICATION": sum(t.overlapped for t in ours.values()),
    }
    whole = sum(sums.values())
    for kind, time in sums.items():
        assert 100 * 1000 * split.get(kind, 0) / whole == pytest.approx(100 * time / whole, abs=0.1)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("exact", [True, False])
def test_hta_agrees_on_the_small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exact: bool) -> None:
    log = small_run().write(tmp_path / "run.arrow")
    export(log, str(tmp_path / "out") + "/")
    analysis = hta(tmp_path / "out", monkeypatch, exact)
    same_as_hta(log, analysis)
    same_kinds_as_hta(log, analysis)
    idle, _ = analysis.get_idle_time_breakdown(ranks=[0], visualize=False)
    assert "host_wait" in set(idle["idle_category"])
    launches = analysis.get_cuda_kernel_launch_stats(ranks=[0], visualize=False)[0]
    assert len(launches) == 12  # nine kernels, three copies
    assert sorted(launches["launch_delay"])[:1] == [86.0]
    graph, fine = analysis.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=1)
    assert fine and len(graph.critical_path_nodes) > 2


def test_hta_agrees_on_a_random_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables, rows = large_rows(10_000, ranks=2)
    log = write_rows(tmp_path / "run.arrow", METADATA, tables, rows, {})
    export(log, str(tmp_path / "out") + "/")
    same_as_hta(log, hta(tmp_path / "out", monkeypatch))

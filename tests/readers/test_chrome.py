"""Chrome's JSON: well-formed, complete in Perfetto, and read by HolisticTraceAnalysis as we count."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks import large_log
from phantora.trace import writer
from phantora.trace.export import export
from phantora.trace.export.selection import Selection
from tests.support.agreement import holistic, paths_fill_steps, same_as_hta, same_as_tracelens, same_in_sql
from tests.support.fakelog import METADATA, FakeRun, Kind, large_rows, small_run, write_rows
from tests.support.trace_processor import ask


def events(path: str) -> list[dict[str, Any]]:
    content = Path(path).read_bytes()
    data = json.loads(gzip.decompress(content) if path.endswith(".gz") else content)
    assert data["distributedInfo"]["world_size"] == 2
    found: list[dict[str, Any]] = data["traceEvents"]
    return found


def test_a_file_of_one_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "BATCH_ROWS", 9)
    log = small_run().write(tmp_path / "run.arrow")
    (path,) = export(log, str(tmp_path / "run.json"), Selection(ranks=frozenset((0,))))
    slices, flows, counters = ask(
        Path(path),
        "select category, name, ts, dur from slice",
        "select count(*) from flow",
        "select count(*) from counter",
    )
    assert Counter(s[0] for s in slices) == {
        "kernel": 9,
        "gpu_memcpy": 3,
        "cpu_op": 9,
        "user_annotation": 6,
        "cuda_sync": 3,
        "cuda_runtime": 12 + 6 + 3,
        "Trace": 1,
        "cpu_instant_event": 9,
    }
    kernels = [s for s in slices if s[1] == "nvjet_tn"]
    assert min(s[2] for s in kernels) == 10_100_000
    assert {s[3] for s in kernels} == {200_000}
    assert flows == [[12]] and counters == [[18]]


def test_file_per_rank(tmp_path: Path) -> None:
    log = small_run().write(tmp_path / "run.arrow")
    paths = export(log, str(tmp_path / "out") + "/")
    assert [Path(path).name for path in paths] == ["rank0.json.gz", "rank1.json.gz"]
    for rank, path in enumerate(paths):
        own = events(path)
        assert {e["pid"] for e in own} == {rank, 10_000 + rank, "Spans"}
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
    named = export(log, str(tmp_path / "run.json.gz"))
    assert [Path(path).name for path in named] == ["run-rank0.json.gz", "run-rank1.json.gz"]


def test_collectives_are_described_as_kineto_does(tmp_path: Path) -> None:
    run = FakeRun()
    run.add(Kind.COMMUNICATOR, 0, 0, 0, "dp", comm=3, sig=run.signature("ranks", "0,1"))
    name = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    operator = run.add(Kind.OPERATOR, 0, 10, 20, sig=run.signature("c10d::_allgather_base_", "bf16[64], bf16[32]"))
    run.add(Kind.COLLECTIVE, 0, 30, 40, name, comm=3, seq=0, bytes=128, ready=30, link=operator)
    (path,) = export(run.write(tmp_path / "run.arrow"), str(tmp_path / "x.json"))
    data = json.loads(Path(path).read_bytes())
    assert data["distributedInfo"]["pg_config"] == [
        {"pg_name": "3", "pg_desc": "dp", "backend_config": "cuda:nccl", "pg_size": 2, "ranks": [0, 1]}
    ]
    (kernel,) = (e["args"] for e in data["traceEvents"] if e.get("cat") == "kernel")
    assert (kernel["Collective name"], kernel["dtype"]) == ("_allgather_base", "BFloat16")
    assert (kernel["In msg nelems"], kernel["Out msg nelems"], kernel["Group size"]) == (32, 64, 2)
    assert (kernel["Process Group Name"], kernel["Process Group Ranks"]) == ("3", "[0, 1]")
    (called,) = (e["args"] for e in data["traceEvents"] if e.get("cat") == "cpu_op")
    assert (called["Input Dims"], called["Input type"]) == ([[64], [32]], ["c10::BFloat16"] * 2)


def test_awkward_names(tmp_path: Path) -> None:
    run = FakeRun()
    name = 'a "quoted"\\ name\n\u00fc\u2192'
    run.add(Kind.ANNOTATION, 0, 0, 10, name)
    run.add(Kind.KERNEL, 0, 0, 10)
    run.add(Kind.COLLECTIVE, 0, 20, 30, "all_reduce")
    paths = export(run.write(tmp_path / "run.arrow"), str(tmp_path / "x.json"))
    found = {e["name"] for e in events(paths[0]) if e["ph"] == "X"}
    assert found == {name, "(unnamed)", "ncclDevKernel_all_reduce", "PyTorch Profiler (0)"}


@pytest.mark.parametrize("finer", [1000, 1])
def test_hta_agrees_on_the_small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finer: int) -> None:
    log = small_run().write(tmp_path / "run.arrow")
    analysis = holistic(log, tmp_path / "out", monkeypatch, finer)
    report = same_as_hta(log, analysis, finer)
    assert report.details is not None
    streams = {(s.rank, s.stream): (s.busy, s.host_wait, s.kernel_wait, s.other) for s in report.details.streams}
    us = 1000
    assert streams[0, 0] == (3 * 450 * us, 2 * 400 * us, 0, 3 * (100 + 50) * us)
    assert streams[0, 1] == (3 * 200 * us, 2 * 800 * us, 0, 0)
    launches = analysis.get_cuda_kernel_launch_stats(ranks=[0], visualize=False)[0]
    assert len(launches) == 12  # nine kernels, three copies
    assert min(launches["launch_delay"]) == 86.0 * finer


@pytest.mark.parametrize("annotation", ["ProfilerStep#", "Optimizer.step#"])
def test_hta_walks_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, annotation: str) -> None:
    """The export has ProfilerStep annotations of its own where the program made none."""
    run = small_run()
    run.tables.names = [name.replace("ProfilerStep#", annotation) for name in run.tables.names]
    analysis = holistic(run.write(tmp_path / "run.arrow"), tmp_path / "out", monkeypatch, steps=True)
    graph, fine = analysis.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=1)
    assert fine and len(graph.critical_path_nodes) > 2


def test_hta_agrees_on_a_random_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables, rows = large_rows(10_000, ranks=2)
    log = write_rows(tmp_path / "run.arrow", METADATA, tables, rows, {})
    same_as_hta(log, holistic(log, tmp_path / "out", monkeypatch))


def test_tracelens_agrees(tmp_path: Path) -> None:
    small = small_run(steps=4).write(tmp_path / "small.arrow")
    large_log.write(tmp_path / "large.arrow", 4_000, ranks=8, steps=3)
    for log in (small, tmp_path / "large.arrow"):
        same_as_tracelens(log, tmp_path)


def test_others_agree_on_64_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "run.arrow"
    large_log.write(log, 20_000, ranks=64, steps=3)
    report = same_as_hta(log, holistic(log, tmp_path / "out", monkeypatch))
    same_in_sql(log, tmp_path, report)
    paths_fill_steps(report)

"""Traces read by `analyze` itself, and the facts of a trace that have another name or none."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from phantora.cli.analyze import analyze as analyze_command
from phantora.errors import PhantoraError
from phantora.importers import import_traces
from phantora.trace.analysis.analyze import analyze
from phantora.trace.analysis.report import Report
from phantora.trace.analysis.summary import lines
from phantora.trace.reader import open_log
from tests.support.kineto_files import Trace


def report_of(trace: Trace, folder: Path, **options: object) -> Report:
    import_traces([str(trace.write(folder / "t.json"))], str(folder / "t.arrow"), **options)  # type: ignore[arg-type]
    return analyze(open_log(folder / "t.arrow"))


def test_a_trace_is_analyzed_without_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    trace = Trace()
    trace.kernel("nvjet_tst", 10, 20, 300)
    path = trace.write(tmp_path / "rank0.json")
    for _ in range(2):  # the second finds the import
        done = CliRunner().invoke(analyze_command, [str(path)])
        assert done.exit_code == 0 and "310.0 us from first to last" in done.output
    assert len(list((tmp_path / "cache").rglob("rank0.arrow"))) == 1


def test_a_trace_without_kernels_has_no_step(tmp_path: Path) -> None:
    trace = Trace()
    for start in (0, 100):
        trace.operator("aten::mm", start, 50, [8, 8], [8, 8])
    report = report_of(trace, tmp_path)
    assert dict(lines(report))["STEP"].startswith("none: the trace has no kernels, only 2 operators; profile with")
    (row,) = report.host_operators
    assert (row.name, row.count, row.time) == ("aten::mm", 2, 100_000)
    assert report.headline.step_time == 0 and not report.delays and "HOST" not in dict(lines(report))


def test_a_dataloader_written_as_an_operator_is_data_loading(tmp_path: Path) -> None:
    trace = Trace()
    for step in range(4):
        t = 1000 * step
        trace.slice("cpu_op", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", t, 700)
        trace.kernel("nvjet_tst", t + 710, t + 720, 280)
    report = report_of(trace, tmp_path)
    assert report.step_source == "dataloader"
    most = report.host_waits[0]
    assert most.name == "DataLoader" and most.time > 0.9 * report.steady.host


def test_kernels_of_rccl_have_the_name_of_their_call(tmp_path: Path) -> None:
    trace = Trace(0, 2)
    trace.all_reduce(0, 10, 100)
    for event in trace.events:
        if event["cat"] == "kernel":
            event["name"] = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
    report = report_of(trace, tmp_path)
    assert report.delays[0].name == "all_reduce with waits"


def test_the_gpu_can_be_named(tmp_path: Path) -> None:
    trace = Trace(gpu="")
    mm = trace.operator("aten::mm", 0, 5, [4096, 4096], [4096, 4096])
    trace.kernel("nvjet_tst", 2, 20, 300, external=mm)
    done: list[int] = []
    report = report_of(trace, tmp_path, gpu="H100", progress=lambda part, whole: done.append(100 * part // whole))
    assert report.metadata["gpu"] == "H100-SXM" and report.metadata["peak_flops"]
    assert report.headline.mfu == pytest.approx(2 * 4096**3 / 320e-6 / 989.4e12, rel=0.01)
    assert done[0] == 0 and done[-1] == 100


@pytest.mark.parametrize("read", [open_log, lambda path: import_traces([path], path + ".arrow")])
def test_dumps_of_torch_have_a_command_of_their_own(read: Callable[[str], object], tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"entries": []}))
    with pytest.raises(PhantoraError, match=f"phantora why {path}"):
        read(str(path))

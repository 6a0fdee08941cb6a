"""torch.profiler in a rank: its trace is the log's, in virtual time, and it costs the program nothing."""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import subprocess
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from phantora.importers import import_traces
from phantora.trace.reader import open_log
from tests.support.runs import SAMPLES, Run, command, records, trace
from tests.support.trace_processor import ask

SECOND = 10**9
Shown = tuple[str, int, int, int]
"""A kernel as something shows it: name, stream, start and end in ns."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trace(tmp_path_factory.mktemp("profiled"), "--cluster", "1x1xH100", str(SAMPLES / "profiled.py"))


def shown_by(directory: Path) -> dict[str, Any]:
    """Content of the one trace file of TensorBoard's handler."""
    (path,) = (directory / "profile").glob("*.pt.trace.json")
    return dict(json.loads(path.read_text(), parse_float=Decimal))


@pytest.fixture(scope="module")
def events(run: Run) -> list[dict[str, Any]]:
    """The complete events of the one trace file; `ts` and `dur` in whole ns."""
    text = shown_by(run.directory)
    base = int(text.get("baseTimeNanoseconds", 0))
    found = [event for event in text["traceEvents"] if event.get("ph") == "X"]
    for event in found:
        event["start"] = base + round(event["ts"] * 1000)
        event["end"] = event["start"] + round(event["dur"] * 1000)
    return found


def profiled(run: Run, shown: list[Shown]) -> list[Shown]:
    """The log's kernels from the first to the last of `shown`. The wall clock at virtual time 0 is a whole second."""
    first, last = min(start for _, _, start, _ in shown), max(end for _, _, _, end in shown)
    rows = records(run.log, "kernel", "name", "stream", "start", "end")
    logged = [(row["name"], row["stream"], row["start"] % SECOND, row["end"] % SECOND) for row in rows]
    return sorted(row for row in logged if first <= row[2] and row[3] <= last)


def of(events: list[dict[str, Any]], category: str) -> list[dict[str, Any]]:
    return [event for event in events if event.get("cat") == category]


def test_kernels_are_those_of_the_log(run: Run, events: list[dict[str, Any]]) -> None:
    """Kernels in the file of TensorBoard's handler are those of the log, to the nanosecond."""
    shown = [(e["name"], e["args"]["stream"], e["start"] % SECOND, e["end"] % SECOND) for e in of(events, "kernel")]
    assert len(shown) > 20
    assert sorted(shown) == profiled(run, shown)


def test_perfetto_shows_the_kernels_of_the_log(run: Run) -> None:
    """Perfetto's own trace processor on the file as torch wrote it, to the nanosecond."""
    (path,) = (run.directory / "profile").glob("*.pt.trace.json")
    (found,) = ask(
        path, "select name, extract_arg(arg_set_id, 'args.stream'), ts, ts + dur from slice where category = 'kernel'"
    )
    shown = [(name, stream, int(start) % SECOND, int(end) % SECOND) for name, stream, start, end in found]
    assert len(shown) > 20
    assert sorted(shown) == profiled(run, shown)


def test_tensorboard_shows_the_kernels_of_the_log(run: Run, tmp_path: Path) -> None:
    """TensorBoard's PyTorch plugin: its events to the nanosecond, and the sums of its kernel view."""
    module = importlib.import_module("torch_tb_profiler.profiler.data")  # late: it takes a second
    (path,) = (run.directory / "profile").glob("*.pt.trace.json")
    data = module.RunProfileData.parse("worker", "span", str(path), str(tmp_path))
    shown = []
    for event in (event for event in data.events if event.type == "Kernel"):
        start, length = (round(Decimal(repr(us)) * 1000) for us in (event.ts, event.duration))
        shown.append((event.name, event.args["stream"], start % SECOND, start % SECOND + length))
    assert len(shown) > 20
    logged = profiled(run, shown)
    assert sorted(shown) == logged

    data.process()
    sums: Counter[str] = Counter()
    for name, _, start, end in logged:
        sums[name] += end - start
    assert {name: round(us * 1000) for name, us in data.kernel_stat["sum"].items()} == sums


def test_launches_link_operators_and_kernels(events: list[dict[str, Any]]) -> None:
    calls = {e["args"]["correlation"]: e for e in of(events, "cuda_runtime")}
    operators = {e["args"]["External id"]: e for e in of(events, "cpu_op")}
    for kernel in of(events, "kernel"):
        call = calls[kernel["args"]["correlation"]]
        assert call["start"] < kernel["start"]
        operator = operators[kernel["args"]["External id"]]
        assert operator["start"] <= call["start"] <= operator["end"]
    assert {e["name"] for e in calls.values()} >= {"cudaLaunchKernel", "cudaDeviceSynchronize"}


def test_a_profile_costs_no_time(run: Run) -> None:
    report = run.report()
    plain, profiled = report["step_ms"]["plain"], report["step_ms"]["profiled"]
    assert profiled[1:] == pytest.approx([plain[-1]] * 3, rel=0.01)
    assert 0 < report["kernels_ms"] <= sum(profiled[2:])
    assert "Self CUDA" in run.out and "aten::mm" in run.out


def test_hta_finds_the_kernels_of_the_log(
    run: Run, events: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """HolisticTraceAnalysis on the file as torch wrote it: lengths to the nanosecond, starts as its floats allow."""
    module = importlib.import_module("hta.trace_analysis")  # late: it takes seconds
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    logging.getLogger("hta").setLevel(logging.ERROR)
    analysis = module.TraceAnalysis(trace_dir=str(run.directory / "profile"), include_last_profiler_step=True)
    rows, names = analysis.t.get_trace(0), analysis.t.symbol_table.get_sym_table()
    found = sorted(
        (round(row["ts"] * 1000), names[row["name"]], round(row["dur"] * 1000))
        for _, row in rows[rows["stream"] >= 0].iterrows()
        if names[row["cat"]] == "kernel"
    )
    shown = [e["start"] % SECOND for e in of(events, "kernel")]
    logged = sorted(
        (row["start"] % SECOND - min(shown), row["name"], row["end"] - row["start"])
        for row in records(run.log, "kernel", "name", "start", "end")
        if min(shown) <= row["start"] % SECOND <= max(shown)
    )
    assert len(found) > 20
    assert [row[1:] for row in found] == [row[1:] for row in logged]
    for (theirs, *_), (ours, *_) in zip(found, logged, strict=True):  # HTA's begin at 0, floats of about 1 ns
        assert abs(theirs - found[0][0] - ours) <= 1


def test_nvtx_ranges_are_annotations_of_the_log(run: Run) -> None:
    ranges = [row for row in records(run.log, "annotation", "name", "start", "end") if row["name"] == "backward"]
    assert len(ranges) == 10, "one in each step"
    assert all(row["start"] < row["end"] for row in ranges)


def test_a_preloaded_cpp_library_changes_nothing(run: Run, tmp_path: Path) -> None:
    """Such as that of a preloaded libtcmalloc: its clocks are found before the stubs' symbols."""
    asked = ["g++", "-print-file-name=libstdc++.so.6"]
    preloaded = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    preloads = f"{os.environ.get('LD_PRELOAD', '')} {preloaded}"  # a sanitizer's first
    subprocess.run(
        command("-o", "run.arrow", "--no-summary", "--cluster", "1x1xH100", str(SAMPLES / "profiled.py")),
        cwd=tmp_path,
        env={**os.environ, "LD_PRELOAD": preloads},
        capture_output=True,
        timeout=240,
        check=True,
    )
    profiled, plain = (of(shown_by(directory)["traceEvents"], "kernel") for directory in (tmp_path, run.directory))
    assert [event["name"] for event in profiled] == [event["name"] for event in plain] != []


def test_the_page_about_execution_traces(tmp_path: Path) -> None:
    """The observer of docs/chakra.md writes the operators of a simulated run, which `phantora import` reads."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "chakra.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    steps = "torch.nn.Linear(64, 64, device='cuda')(torch.zeros(8, 64, device='cuda')).sum().backward()\n"
    (tmp_path / "train.py").write_text("import torch\n" + re.sub(r"\.\.\. .*\n", steps, code))
    trace(tmp_path, "--cluster", "1x1xH100", "train.py")
    import_traces([str(tmp_path / "et.json")], str(tmp_path / "et.arrow"))
    assert {"aten::linear", "aten::sum"} <= set(open_log(tmp_path / "et.arrow").words("name"))

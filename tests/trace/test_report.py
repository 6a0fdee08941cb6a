"""Times of the report: by head, against a slow reference, and as they are shown."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from phantora.cli.analyze import analyze
from phantora.errors import PhantoraError
from phantora.sweeps.measure import measured_of
from phantora.trace import writer
from phantora.trace.analysis.analyze import Filters
from phantora.trace.analysis.analyze import analyze as analyze_log
from phantora.trace.analysis.host_waits import most_in
from phantora.trace.analysis.interval_scan import sweep
from phantora.trace.analysis.render import _why_lost, render, render_summary
from phantora.trace.analysis.report import HostWait, Loss, Report, to_json
from phantora.trace.analysis.summary import lines
from phantora.trace.analysis.why import answer
from phantora.trace.reader import open_log
from tests.support.fakelog import PEAK, FakeRun, Kind, small_run

US = 1000


def report_of(run: FakeRun, path: Path, **options: object) -> Report:
    return analyze_log(open_log(run.write(path / "run.arrow")), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [5, 1000])
def test_small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(writer, "BATCH_ROWS", rows)
    report = report_of(small_run(optimizer=False), tmp_path)
    assert report.step_source == "profiler"
    assert [step.number for step in report.steps] == [1, 2, 3]
    for rank in report.ranks:
        late = 50 * US * (rank.rank > 0)
        for step in rank.steps:
            times = step.times
            begins = 400 * US * (step.number == 1)  # the first step begins with its first kernel
            assert times.time == 1000 * US - begins
            assert times.compute == 400 * US
            assert times.communication == 200 * US - late
            assert times.overlapped == 100 * US
            assert times.exposed == 100 * US - late
            assert times.copy == 50 * US
            assert times.idle == 450 * US + late - begins
            assert times.waiting == 50 * US - late
            assert times.flops == 4e11
            assert times.mfu == pytest.approx(4e11 / (1e-3 - begins * 1e-9) / PEAK)
            assert (times.peak_allocated, times.peak_reserved) == (3 << 30, 4 << 30)
        assert rank.gpu.time == 2600 * US
        assert rank.gpu.idle == (2600 - 3 * 550) * US + 3 * late
        assert [step.note for step in rank.steps] == ["start-up", "", ""]
    assert report.steady.time == report.headline.step_time == 1000 * US
    assert report.headline.mfu == pytest.approx(4e11 / 1e-3 / PEAK)
    assert report.steps[0].times.overlap == pytest.approx(100 / 175)
    assert report.by_class == pytest.approx({"gemm": 800 / 1200, "communication": 300 / 1200, "unknown": 100 / 1200})
    assert sum(report.by_provenance.values()) == pytest.approx(1)


def test_steps_end_with_the_optimizer(tmp_path: Path) -> None:
    report = report_of(small_run(profiler=False), tmp_path)
    assert report.step_source == "optimizer"
    first, *later = report.ranks[0].steps
    assert (first.start, first.end) == (10_100 * US, 10_700 * US)
    assert [step.times.time for step in later] == [1000 * US] * 2
    assert report.steady.time == 1000 * US and report.steady.compute == 400 * US


def test_optimizers_without_kernels_between_are_one(tmp_path: Path) -> None:
    run = FakeRun()
    for k in range(3):
        t = 1000 * k
        run.add(Kind.KERNEL, 0, t + 100, t + 200, "forward", launch=t + 50)
        run.add(Kind.ANNOTATION, 0, t + 300, t + 400, "Optimizer.step#AdamW.step")
        run.add(Kind.KERNEL, 0, t + 320, t + 380, "adamw", launch=t + 310)
        run.add(Kind.ANNOTATION, 0, t + 420, t + 500, "Optimizer.step#Muon.step")
        run.add(Kind.KERNEL, 0, t + 440, t + 480, "muon", launch=t + 430)
    report = report_of(run, tmp_path)
    assert [(step.start, step.end) for step in report.steps] == [(100, 480), (480, 1480), (1480, 2480)]


@pytest.mark.parametrize("by", ["backward", "pattern"])
def test_without_marks_passes_or_what_repeats_is_a_step(tmp_path: Path, by: str) -> None:
    run = small_run(steps=6, profiler=False, optimizer=False)
    report = report_of(run, tmp_path, filters=Filters(by=None if by == "backward" else by))
    assert report.step_source == by
    assert [step.times.time for step in report.steps[1:]] == [1000 * US] * (len(report.steps) - 1)
    assert len(report.steps) in (5, 6) and report.headline.step_time == 1000 * US


@pytest.mark.parametrize(("waits", "layers_of_a_step"), [(True, 8), (False, 1)])
def test_equal_layers_make_a_step_where_the_host_waits(tmp_path: Path, waits: bool, layers_of_a_step: int) -> None:
    """A model of eight equal layers and nothing else: what repeats is a layer, and the host waits after eight."""
    run = FakeRun()
    price = run.price("gemm", "measured", 1e9, bytes=1e6, main_part=0)
    for step in range(6):
        t = 1000 * step
        for layer in range(8):
            for name, start, end in (("up", 0, 60), ("down", 60, 100)):
                run.add(
                    Kind.KERNEL,
                    0,
                    (t + 100 * layer + start) * US,
                    (t + 100 * layer + end) * US,
                    name,
                    stream=0,
                    launch=(t + 10 * layer + start // 12) * US,
                    price=price,
                )
        if waits:
            run.add(Kind.SYNC, 0, (t + 90) * US, (t + 800) * US, "cudaDeviceSynchronize")
    report = report_of(run, tmp_path)
    assert report.step_source == "pattern"
    assert report.headline.step_time == pytest.approx((1000 if waits else 100) * US, rel=0.01)
    assert len(report.steps) >= 5 * 8 // layers_of_a_step - 1
    assert report.may_be_layers != waits
    assert ("steps, or the layers of one" in dict(lines(report))["STEP"]) != waits


@pytest.mark.parametrize(
    ("status", "said"),
    [(1, "the run ended before a GPU had work"), (0, "the script gave the GPU no work; are its model and data there?")],
)
def test_a_run_without_work_on_a_gpu_has_no_step(tmp_path: Path, status: int, said: str) -> None:
    run = FakeRun()
    run.trailer["status"] = status
    run.add(Kind.ANNOTATION, 0, 10, 20, "Optimizer.step#SGD.step")
    report = report_of(run, tmp_path)
    text = io.StringIO()
    render(report, Console(file=text, width=100))
    assert text.getvalue().splitlines()[-1] == f"Step: none: {said}"
    assert lines(report)[-1] == ("STEP", f"none: {said}")


def test_without_marks_or_repetition_the_run_is_one_step(tmp_path: Path) -> None:
    run = FakeRun()
    for k in range(2):
        run.add(Kind.KERNEL, 0, 1000 * k * US, (1000 * k + 400) * US, f"k{k}", launch=1000 * k * US)
    report = report_of(run, tmp_path)
    assert report.step_source == "run"
    assert len(report.steps) == 1
    assert report.steps[0].times.compute == 2 * 400 * US


def test_memory_stays_allocated_between_steps(tmp_path: Path) -> None:
    run = FakeRun()
    run.add(Kind.MEMORY, 0, 10, 10, value=1000, bytes=5000)
    for k in range(3):
        run.add(Kind.ANNOTATION, 0, 100 * k, 100 * k + 100, f"ProfilerStep#{k}")
        run.add(Kind.KERNEL, 0, 100 * k + 500, 100 * k + 510, "k", launch=100 * k)  # the GPU is behind
    run.add(Kind.MEMORY, 0, 250, 250, value=200, bytes=2000)
    steps = report_of(run, tmp_path).steps
    assert [(s.times.peak_allocated, s.times.peak_reserved) for s in steps] == [(1000, 5000)] * 3


def test_selection(tmp_path: Path) -> None:
    path = small_run().write(tmp_path / "run.arrow")
    report = analyze_log(open_log(path), Filters(ranks=frozenset({1}), steps=frozenset({2, 3})))
    assert [rank.rank for rank in report.ranks] == [1]
    assert [step.number for step in report.steps] == [2, 3]
    with pytest.raises(PhantoraError, match="steps 1 to 3"):
        analyze_log(open_log(path), Filters(steps=frozenset({9})))
    with pytest.raises(PhantoraError, match="ranks 0 to 1"):
        analyze_log(open_log(path), Filters(ranks=frozenset({7})))


def test_a_log_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "BATCH_ROWS", 10)
    data = small_run(steps=6).write(tmp_path / "run.arrow").read_bytes()
    (tmp_path / "cut.arrow").write_bytes(data[: 2 * len(data) // 3])
    report = analyze_log(open_log(tmp_path / "cut.arrow"))
    assert not report.complete
    assert 1 <= len(report.steps) < 6
    assert report.steps[0].times.compute == 400 * US


Interval = tuple[int, int]


def slow_union(intervals: Iterable[Interval], window: Interval) -> int:
    return len({t for a, b in intervals for t in range(max(a, window[0]), min(b, window[1]))})


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)).map(lambda x: (x[0], x[0] + x[1])), max_size=25)


@settings(max_examples=100, deadline=None)
@given(st.lists(spans, min_size=1, max_size=3), st.integers(0, 40), st.integers(0, 50))
def test_sweep_against_slow_reference(layers: list[list[Interval]], begin: int, length: int) -> None:
    arrays = [(np.array([a for a, _ in own], np.int64), np.array([b for _, b in own], np.int64)) for own in layers]
    window = (begin, begin + length)
    cut = sweep(arrays, *window)
    assert (cut.length > 0).all() and int(cut.length.sum()) == length
    for own, active in zip(layers, cut.active, strict=True):
        assert cut.time(active) == slow_union(own, window)


@settings(max_examples=40, deadline=None)
@given(spans, spans, spans, st.integers(1, 12), st.booleans())
def test_summary_against_slow_reference(
    compute: list[Interval], communication: list[Interval], copies: list[Interval], batch: int, details: bool
) -> None:
    run = FakeRun()
    run.add(Kind.ANNOTATION, 0, 0, 40, "ProfilerStep#0")
    run.add(Kind.ANNOTATION, 0, 40, 100, "ProfilerStep#1")
    for kind, own in ((Kind.KERNEL, compute), (Kind.COLLECTIVE, communication), (Kind.MEMCPY, copies)):
        for start, end in own:
            run.add(kind, 0, start, end, "ncclDevKernel_x")
    with TemporaryDirectory() as place, mock.patch.object(writer, "BATCH_ROWS", batch):
        report = report_of(run, Path(place), details=details)
    for step in report.steps:
        window = (step.start, step.end)
        times = step.times
        every = [*compute, *communication, *copies]
        assert times.compute == slow_union(compute, window)
        assert times.communication == slow_union(communication, window)
        assert times.exposed == slow_union([*compute, *communication], window) - slow_union(compute, window)
        assert times.idle == window[1] - window[0] - slow_union(every, window)
        assert times.compute + times.exposed + times.copy + times.idle == times.time
        assert sum(times.stalls.values()) == times.time - times.compute


def test_nccl_variables_are_named_once(tmp_path: Path) -> None:
    heard = {"honoured": {"NCCL_ALGO": "Ring"}, "ignored": {"NCCL_CROSS_NIC": "rings keep to their rail in any case"}}
    run = small_run()
    run.metadata = replace(run.metadata, extra={"nccl": heard})
    out = io.StringIO()
    render(report_of(run, tmp_path), Console(file=out, width=100))
    lines = "NCCL with NCCL_ALGO=Ring\nNCCL_CROSS_NIC ignored: rings keep to their rail in any case\n"
    assert out.getvalue().count(lines) == 1
    out.truncate(0)
    render_summary(report_of(run, tmp_path), Console(file=out, width=100))
    assert "ENV       not simulated: NCCL_CROSS_NIC (phantora analyze)\n" in out.getvalue()


@pytest.mark.parametrize("run", [small_run(), small_run(ranks=20, steps=15), small_run(profiler=False)])
def test_tables_fit_the_terminal(tmp_path: Path, run: FakeRun) -> None:
    out = io.StringIO()
    render(report_of(run, tmp_path), Console(file=out, width=100))
    text = out.getvalue()
    assert "40.0%" in text and "3.00 GiB" in text and "measured" in text and "a step, mean of" in text
    table = [line for line in text.splitlines() if str(tmp_path) not in line]
    assert max(len(line.rstrip()) for line in table) <= 100
    assert "…" not in text


def test_command(tmp_path: Path) -> None:
    path = str(small_run().write(tmp_path / "run.arrow"))
    done = CliRunner().invoke(analyze, [path])
    assert done.exit_code == 0 and "Steps" in done.output
    done = CliRunner().invoke(analyze, [path, "--json", "--ranks", "0", "--steps", "2-3"])
    data = json.loads(done.output)
    assert data == json.loads(to_json(analyze_log(open_log(path), Filters(frozenset({0}), frozenset({2, 3})))))
    assert data["steps"][0]["times"]["overlap"] == 0.5
    assert data["ranks"][0]["gpu"]["overlap"] == 0.5


def chained(backward: int) -> FakeRun:
    """Steps that end with two optimizers with a kernel between them; backward passes run in thread `backward`."""
    run = FakeRun()
    for k in range(3):
        t = 1000 * k
        mm = run.add(Kind.OPERATOR, 0, t + 50, t + 60, "aten::mm", stream=backward)
        run.add(Kind.KERNEL, 0, t + 100, t + 200, "backward", launch=t + 55, link=mm)
        for name, at in (("dense", 300), ("experts", 420)):
            run.add(Kind.ANNOTATION, 0, t + at, t + at + 80, f"Optimizer.step#{name}")
            run.add(Kind.OPERATOR, 0, t + at + 5, t + at + 9, "aten::_fused_adamw_", stream=0)
            run.add(Kind.KERNEL, 0, t + at + 20, t + at + 60, "adamw", launch=t + at + 8)
        run.add(Kind.KERNEL, 0, t + 400, t + 410, "parameters from the optimizer's copy", launch=t + 395)
    return run


def test_optimizers_without_a_backward_pass_between_are_one(tmp_path: Path) -> None:
    """Megatron's mixture of experts copies parameters between its two."""
    steps = report_of(chained(backward=1), tmp_path).steps
    assert [(step.start, step.end) for step in steps] == [(100, 480), (480, 1480), (1480, 2480)]
    # Without a thread of autograd's own, kernels are all there is to go by.
    assert len(report_of(chained(backward=0), tmp_path).steps) == 6


def test_optimizers_that_call_the_backward_pass_are_steps(tmp_path: Path) -> None:
    """Lightning gives the optimizer a closure with both passes, and launches nothing between two steps."""
    run = FakeRun()
    for t in (0, 1000, 2000):
        run.add(Kind.ANNOTATION, 0, t + 100, t + 900, "Optimizer.step#AdamW")
        mm = run.add(Kind.OPERATOR, 0, t + 200, t + 210, "aten::mm", stream=1)
        run.add(Kind.KERNEL, 0, t + 220, t + 300, "backward", launch=t + 205, link=mm)
    assert [step.end for step in report_of(run, tmp_path).steps] == [300, 1300, 2300]


def test_links(tmp_path: Path) -> None:
    """Two steps of 100 us after the first; a stretch of 40 us reaches over a border, one is empty."""
    run = FakeRun()
    us = 1000
    for k in range(3):
        run.add(Kind.ANNOTATION, 0, k * 100 * us, (k + 1) * 100 * us, f"ProfilerStep#{k}")
        run.add(Kind.KERNEL, 0, k * 100 * us, (k + 1) * 100 * us, "k", launch=k * 100 * us)
    wide, narrow = 100_000_000_000, 25_000_000_000  # bytes/s
    for start, end, name, share, bandwidth in (
        (0, 100, "gpu0>switch", 1.0, wide),  # of the first step, which does not count
        (120, 160, "gpu0>switch", 0.5, wide),
        (180, 220, "gpu0>switch", 0.25, wide),
        (110, 120, "nic0>switch", 1.0, narrow),
        (210, 230, "nic0>switch", 0.75, narrow),
        (230, 290, "nic0>switch", 0.0, narrow),
        (0, 90, "idle>switch", 1.0, narrow),
    ):
        moved = round((end - start) * us * share * bandwidth / 1e9)
        run.add(Kind.LINK, 0, start * us, end * us, name, value=bandwidth, bytes=moved)
    report = report_of(run, tmp_path)
    assert report.details is not None
    gpu, nic = report.details.links  # the third carries something in the first step only, which is start-up
    assert (gpu.name, gpu.bandwidth, gpu.bytes, gpu.busy) == ("gpu0>switch", wide, 1_500_000, 40 * us)
    assert gpu.utilisation == pytest.approx(0.15) and gpu.peak == 0.5
    assert (nic.name, nic.bytes, nic.busy) == ("nic0>switch", 312_500, 15 * us)
    assert nic.utilisation == pytest.approx(0.125) and nic.peak == 1
    out = io.StringIO()
    render(report, Console(file=out, width=100))
    line = next(line for line in out.getvalue().splitlines() if line.startswith("gpu*>switch"))
    assert " ".join(line.split()) == "gpu*>switch 1 100.0 GB/s 1.4 MiB 40.0% 15.0% 15.0% gpu0>switch 50.0%"
    alone = report_of(run, tmp_path, filters=Filters(steps=frozenset({1})))
    assert alone.details is not None
    assert [(link.bytes, link.busy) for link in alone.details.links if link.name == "gpu0>switch"] == [
        (2_500_000, 60 * us)
    ]


def test_data_that_decide_are_in_the_step_and_its_rates(tmp_path: Path) -> None:
    run = small_run(steps=6)
    run.trailer |= {"data_slowdown": 9.0, "data_step": 6.0}
    run.trailer |= {"data_fastest": 3.0, "loader": {"batch": 12e6, "used": 1e6, "workers": 2, "starts": 3}}
    report = report_of(run, tmp_path)
    words = dict(lines(report))
    assert words["STEP"].startswith("6.00 ms with the CPU time of its data, 1.00 ms without")
    assert words["RANGE"].startswith("3.00 ms to 9.00 ms by the host")
    assert "most in DataLoader" in words["HELD UP"] and "ENERGY" not in words
    assert words["HOST"].startswith("2 workers make a batch every 6.00 ms, the script uses one every 1.00 ms: num_work")
    assert "num_workers=12, or cheaper transforms; persistent_workers=True" in dict(answer(report))["NEXT"]
    assert report.headline.step_time == report.steady.time == 6e6 and report.headline.without_data == 1e6
    found = measured_of(report)
    assert found.step_time == 6e6 and "most in DataLoader" in found.holds_up


def test_the_largest_part_of_the_waits_is_named(tmp_path: Path) -> None:
    report = report_of(small_run(), tmp_path)
    report.steady.stalls = {"host": 100.0}

    def said(loader: float, unnamed: float) -> str:
        report.host_waits = [HostWait("DataLoader", loader), HostWait("Optimizer.step", 15.0), HostWait("", unnamed)]
        return most_in(report)

    assert said(60, 25) == ", most in DataLoader"
    assert said(46, 39) == ", the largest part in DataLoader"
    assert said(40, 45) == said(30, 20) == ""


def test_work_on_the_cpu_that_no_model_has_widens_the_step(tmp_path: Path) -> None:
    run = small_run(steps=6)
    run.trailer |= {"uncounted_cpu": 9.0}
    words = dict(lines(report_of(run, tmp_path)))
    assert words["STEP"].startswith("1.00 ms, up to 10.0 ms with the script's work on the CPU")
    assert words["RANGE"].startswith("up to 10.0 ms: ") and "--host-time measured" in words["RANGE"]


def test_a_class_above_the_peak_is_no_loss_below_it() -> None:
    assert _why_lost(Loss(name="gemm", flops=True, share=0.2)) == "below peak"
    assert _why_lost(Loss(name="gemm", flops=True, share=-0.2)) == "above this peak, by a faster format"

"""HELD UP, LOST, RANGE and the steps that wait: lines of a summary against logs whose numbers are known."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from rich.console import Console

from phantora.trace.analysis.analyze import analyze
from phantora.trace.analysis.assumptions import Assumption, relevant
from phantora.trace.analysis.findings import findings
from phantora.trace.analysis.render import render
from phantora.trace.analysis.report import Report, Work
from phantora.trace.analysis.summary import achieved_rate, error_bar, lines
from phantora.trace.analysis.why import _fewer_launches, answer
from phantora.trace.reader import open_log
from phantora.trace.schema import REAL
from tests.support.fakelog import METADATA, PEAK, FakeRun, Kind

US = 1000
STEP = 1000 * US


def report_of(run: FakeRun, folder: Path) -> Report:
    return analyze(open_log(run.write(folder / "run.arrow")))


def printed(report: Report) -> str:
    text = io.StringIO()
    render(report, Console(file=text, width=200))
    return text.getvalue()


def sharded(folder: Path, late: int) -> Report:
    """Steps of 1 ms on two ranks: a product of 500 us, on rank `late` of 700; an all-gather of 100 us and a
    reduce-scatter of 50, exposed. On the other rank the first waits 200 us."""
    run = FakeRun()
    product = run.price("gemm", "measured", 2e11)
    rest = run.price("elementwise", "interpolated", error=0.6)
    moved = run.price("communication", "measured")
    for comm in (0, 1):
        for rank in (0, 1):
            run.add(Kind.COMMUNICATOR, rank, 0, 0, "dp", comm=comm, sig=run.signature("ranks", "0,1"))
    for step in range(3):
        t = step * STEP
        for rank in (0, 1):
            ready = t + 700 * US
            own = 700 if rank == late else 500
            common = {"launch": t, "stream": 0}
            run.add(Kind.KERNEL, rank, t, t + own * US, "gemm", price=product, **common)
            run.add(
                Kind.COLLECTIVE,
                rank,
                t + own * US,
                t + 800 * US,
                "ncclDevKernel_AllGather_RING_LL",
                launch=t,
                stream=7,
                comm=0,
                seq=step,
                ready=ready,
                last_rank=late,
                price=moved,
            )
            run.add(
                Kind.COLLECTIVE,
                rank,
                t + 800 * US,
                t + 850 * US,
                "ncclDevKernel_ReduceScatter_RING_LL",
                launch=t,
                stream=7,
                comm=1,
                seq=step,
                ready=t + 800 * US,
                last_rank=late,
                price=moved,
            )
            run.add(Kind.KERNEL, rank, t + 850 * US, t + STEP, "add", price=rest, **common)
            run.add(Kind.ANNOTATION, rank, t, t + STEP, f"ProfilerStep#{step + 1}")
    return report_of(run, folder)


@pytest.mark.parametrize("late", [0, 1])
def test_each_delay_has_its_own_share(tmp_path: Path, late: int) -> None:
    report = sharded(tmp_path, late)
    found = dict(lines(report))
    assert found["HELD UP"] == (
        f"25.0 % of the step: all_gather 10.0 %, late rank {late} 10.0 % (its kernels take 20.0 % of the step longer), "
        "reduce_scatter 5.0 %"
    )
    assert sum(delay.time for delay in report.delays) == report.steady.time - report.steady.compute == 250 * US


def test_a_rank_that_is_late_by_its_work(tmp_path: Path) -> None:
    report = sharded(tmp_path, 1)
    report.ranks[1].gpu.flops = 1.5 * report.ranks[0].gpu.flops
    longer = "its kernels take 20.0 % of the step longer"
    assert f"late rank 1 10.0 % ({longer}, has 1.50 times the work)" in dict(lines(report))["HELD UP"]
    assert report.details is not None
    assert "give rank 1 an equal share of the data; " in dict(answer(report))["NEXT"]
    report.ranks[1].gpu.flops = report.ranks[0].gpu.flops
    assert "check clocks, temperature and other processes of rank 1's GPU; " in dict(answer(report))["NEXT"]
    report.ranks[1].gpu.flops = 1.5 * report.ranks[0].gpu.flops
    straggler = next(text for text in findings(report, report.details) if text.startswith("Straggler"))
    assert straggler.endswith("; it has 1.50 times the flops of the median rank: share the data evenly.")


def test_a_rank_that_is_late_by_its_host(tmp_path: Path) -> None:
    """The GPU of rank 0 waits 400 us for its host, then computes 1 % longer than rank 1's; that waits for it."""
    run = FakeRun()
    product, moved = run.price("gemm", "measured", 2e11), run.price("communication", "measured")
    for rank in (0, 1):
        run.add(Kind.COMMUNICATOR, rank, 0, 0, "dp", comm=0, sig=run.signature("ranks", "0,1"))
    for step in range(4):
        t = step * STEP
        for rank in (0, 1):
            begin = t + (400 * US if rank == 0 else 0)
            end = begin + (510 if rank == 0 else 500) * US
            run.add(Kind.KERNEL, rank, begin, end, "gemm", launch=begin - US, stream=0, price=product)
            made = {"stream": 7, "comm": 0, "seq": step, "ready": t + 910 * US, "last_rank": 0, "price": moved}
            run.add(Kind.COLLECTIVE, rank, end, t + STEP, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", launch=t, **made)
            run.add(Kind.ANNOTATION, rank, t, t + STEP, f"ProfilerStep#{step + 1}")
    report = report_of(run, tmp_path)
    assert "late rank 0 20.5 % (its GPU is host-bound for 40.0 %" in dict(lines(report))["HELD UP"]
    said = dict(answer(report))
    assert "rank 0's GPU waits 400.00 us of a step longer for its host than others'" in said["NEXT"] + said["WHY"]
    assert "clocks" not in said["NEXT"] and "launch less" not in said["NEXT"]


def test_a_script_is_not_told_to_do_what_it_does() -> None:
    def said(*operators: str, graphs: bool = False) -> str:
        works = [SimpleNamespace(name=name, cls="optimizer" if "foreach" in name else "gemm") for name in operators]
        details = SimpleNamespace(operators=works, kernels=[], graphs=graphs)
        return _fewer_launches(cast(Report, SimpleNamespace(details=details)))

    larger = "larger kernels (a larger batch)"
    assert said("aten::mm") == f"launch less (torch.compile, CUDA graphs) or {larger}"
    assert said("aten::_foreach_add_") == f"launch less (torch.compile, CUDA graphs, fused optimizers) or {larger}"
    compiled = ("aten::_fused_adamw_", "inductor::triton_poi_fused_0")
    assert said(*compiled) == f"launch less (mode='reduce-overhead' of torch.compile) or {larger}"
    assert said(*compiled, graphs=True) == f"launch {larger}"


def test_losses_and_delays_explain_the_mfu(tmp_path: Path) -> None:
    report = sharded(tmp_path, 1)
    mfu = 2e11 / (STEP * 1e-9 * PEAK)
    delays = sum(delay.time for delay in report.delays) / report.steady.time
    assert report.headline.mfu == pytest.approx(mfu)
    assert [(loss.name, loss.flops) for loss in report.losses] == [("gemm", True), ("elementwise", False)]
    assert sum(loss.share for loss in report.losses) + delays + mfu == pytest.approx(1)
    below = 100 * (0.6 - mfu)
    assert dict(lines(report))["LOST"] == (
        f"{15 + below:.0f} % of the step: 15 % without flops (elementwise), {below:.0f} % below BF16's peak (gemm)"
    )


def test_a_wide_bar_names_its_largest_cause(tmp_path: Path) -> None:
    run = FakeRun()
    price = run.price("elementwise", "scaled", error=0.6)
    for step in range(3):
        t = step * STEP
        run.add(Kind.KERNEL, 0, t, t + STEP, "add", launch=t, price=price)
        run.add(Kind.ANNOTATION, 0, t, t + STEP, f"ProfilerStep#{step + 1}")
    text = dict(lines(report_of(run, tmp_path)))["RANGE"]
    assert "prices of elementwise, scaled; narrower with --missing FILE, then phantora profile FILE" in text
    assert "RANGE" not in dict(lines(sharded(tmp_path, 0)))


def loading(folder: Path, slow: set[int], first: float = 1.0) -> Report:
    """A real run of ten steps of 1 ms; in the steps `slow` the GPU waits 2 ms more for the DataLoader. The first takes
    `first` times as long."""
    run = FakeRun(replace(METADATA, host_mode=REAL, world_size=1, ranks_per_host=1, peak_flops={}))
    t = 0
    for step in range(10):
        begin = t
        if step in slow:
            t += 2 * STEP
        loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        run.add(Kind.ANNOTATION, 0, begin, t + 5 * US, loader)
        length = round(STEP * (first if step == 0 else 1.0))
        run.add(Kind.KERNEL, 0, t + 10 * US, t + length, "gemm", launch=t + 5 * US)
        t += length
        run.add(Kind.ANNOTATION, 0, t - 10 * US, t - 1, "Optimizer.step#SGD.step")
    return report_of(run, folder)


def test_steps_of_a_real_run_that_wait_count(tmp_path: Path) -> None:
    report = loading(tmp_path, {4, 6, 9})
    assert report.headline.apart == {}  # the first step is like the others
    assert report.headline.step_time == pytest.approx(1.6 * STEP, rel=0.01)
    found = dict(lines(report))
    assert found["STEP"].startswith("1.60 ms (steps: 0.99 to 3.00 ms), 3 of 10 steps wait for the host: 38 % of")
    assert "host 38.1 % (most in DataLoader)" in found["HELD UP"]
    assert report.details is not None and "most in DataLoader" in report.details.findings[0]
    (path,) = (path for path in report.details.critical_paths if path.gain is not None)
    assert path.step == 5 and next(iter(path.by_class)) == "host"  # one of those that take most of the time
    text = printed(report)
    assert "Critical path of step 5 (it waits for the host): 3.00 ms" in text
    assert re.search(r"^  in DataLoader +604.50 us +37.8%", text, re.MULTILINE)


def test_a_long_table_of_steps_folds_those_near_the_typical_one(tmp_path: Path) -> None:
    run = FakeRun(replace(METADATA, host_mode=REAL, world_size=1, ranks_per_host=1, peak_flops={}))
    t = 0
    for step in range(1, 41):
        begin = t
        t += 3 * STEP if step in (7, 30) else 0
        length = STEP + 20 * US * (step % 3)
        run.add(Kind.KERNEL, 0, t + 10 * US, t + length, "gemm", launch=t + 5 * US)
        t += length
        run.add(Kind.ANNOTATION, 0, begin, t - 1, f"ProfilerStep#{step}")
    rows = printed(report_of(run, tmp_path)).partition("\nSteps")[2].partition("\nRanks")[0].splitlines()
    assert [row.split("  ")[0] for row in rows[2:6]] == ["1-6,8-29,31-40", "7", "30", "steady"]


def test_an_assumption_about_the_host_is_said_where_it_matters() -> None:
    threads = Assumption("CPU operators run on 24 threads at train.py:3", 1)
    count = Assumption("nonzero finds 0 in 5000 elements at train.py:12", 1)
    assert relevant([count, threads], 100.0, 0.5) == [count]
    assert relevant([count, threads], 100.0, 2.0) == [count, threads]


def test_a_first_step_unlike_the_others_is_set_apart_with_its_share(tmp_path: Path) -> None:
    report = loading(tmp_path, set(), first=5.0)
    assert report.headline.apart == {"start-up": [1]}
    assert report.details is not None
    assert "Excluded: start-up (step 1) takes 4.99 ms, 35.7% of all steps' time." in report.details.findings


def test_an_answer_names_the_command_that_shows_the_rank(tmp_path: Path) -> None:
    report = sharded(tmp_path, 1)
    assert f": phantora analyze {report.path} --ranks " in dict(answer(report))["NEXT"]


def test_error_bars_have_one_form() -> None:
    found = [error_bar(*bar) for bar in ((0.024, 0.028), (0.03, 0.75), (0.004, 0.004))]
    assert found == ["±3 %", "-3 % +75 %", "±0.4 %"]


def test_attention_has_at_most_its_peak() -> None:
    """torch counts the whole square of scores, of which a causal kernel computes half."""
    work = Work(
        name="flash",
        cls="attention",
        count=1,
        time=1e6,
        shortest=1e6,
        longest=1e6,
        share=1.0,
        flops=1.2e12,
        at_peak=1.2e6,
        bytes=0.0,
        provenance="measured",
    )
    assert achieved_rate(work, {}) == ("1200 TFLOP/s", "≤100%")


@pytest.mark.parametrize(("stream", "cause"), [(0, "launch gap"), (1, "dependency")])
def test_one_stream_waits_for_no_event(tmp_path: Path, stream: int, cause: str) -> None:
    """Kernels that are launched at once, 20 us apart. What worked last is of the next one's stream, or of another."""
    run = FakeRun()
    product = run.price("gemm", "measured", 2e11)
    for at in range(4):
        run.add(
            Kind.KERNEL,
            0,
            at * 100 * US,
            (at * 100 + 80) * US,
            "gemm",
            launch=0,
            stream=at % 2 and stream,
            price=product,
        )
    steady = report_of(run, tmp_path).steady
    assert {name: time for name, time in steady.stalls.items() if time} == {cause: 60 * US}


@pytest.mark.parametrize(
    ("cls", "operator", "remedy"),
    [
        ("optimizer", "aten::_foreach_lerp_.Scalar", "fuse the optimizer (fused=True); "),
        ("normalization", "aten::_softmax", "let torch.nn.functional.scaled_dot_product_attention compute attention; "),
        ("elementwise", "aten::gelu", "fuse them (torch.compile); "),
    ],
)
def test_kernels_decide_where_nothing_holds_the_step_up(tmp_path: Path, cls: str, operator: str, remedy: str) -> None:
    """Steps of 1 ms: 60 us idle for the host, 240 in a product, 700 in kernels without flops."""
    run = FakeRun()
    product, rest = run.price("gemm", "measured", 1e11), run.price(cls, "measured")
    for step in range(4):
        t = step * STEP
        run.add(Kind.ANNOTATION, 0, t, t + STEP, f"ProfilerStep#{step + 1}")
        mm, own = (run.signature(name, "bf16[64,64]") for name in ("aten::mm", operator))
        run.add(Kind.KERNEL, 0, t + 60 * US, t + 300 * US, "gemm", launch=t + 59 * US, sig=mm, price=product)
        run.add(Kind.KERNEL, 0, t + 300 * US, t + STEP, cls, launch=t + 60 * US, sig=own, price=rest)
    said = dict(answer(report_of(run, tmp_path)))
    what = f"{cls} takes 700.00 us of a step (70.0%) and has no flops, most in {operator.removeprefix('aten::')}"
    assert said["WHY"] == f"Kernels: {what}."
    assert said["NEXT"].startswith(f"{remedy}the kernels decide: phantora analyze ")

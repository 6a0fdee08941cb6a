"""The unmeasured operators that decide a step most, and the text for an unknown one."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from phantora.trace.analysis.analyze import analyze
from phantora.trace.analysis.render import render
from phantora.trace.analysis.report import Report
from phantora.trace.reader import open_log
from tests.support.fakelog import FakeRun, Kind

US = 1000


def report_of(path: Path, unknown_us: int, error: float | None) -> Report:
    """A run of one rank: a measured product of 1 ms, and a kernel that no operator launched."""
    run = FakeRun()
    product = run.price("gemm", "measured", error=0.02)
    unknown = run.price("other", "analytic", error=error)
    mm = run.signature("aten::mm", "bf16[8,8], bf16[8,8]")
    op = run.add(Kind.OPERATOR, 0, 0, 10 * US, sig=mm, stream=0)
    run.add(Kind.KERNEL, 0, 10 * US, 1010 * US, "nvjet", stream=0, launch=5 * US, link=op, sig=mm, price=product)
    end = (1010 + unknown_us) * US
    run.add(Kind.KERNEL, 0, 1010 * US, end, "my_kernel", stream=0, launch=8 * US, price=unknown)
    return analyze(open_log(run.write(path / "run.arrow")))


def shown(report: Report) -> str:
    console = Console(file=io.StringIO(), width=200)
    render(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_kernels_of_no_operator_are_among_the_unmeasured(tmp_path: Path) -> None:
    (found,) = report_of(tmp_path, 1000, 1.0).unmeasured
    assert (found.operator, found.provenance) == ("my_kernel", "analytic")
    assert found.share == pytest.approx(0.5) and found.error == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("us", "error", "said"),
    [(1000, 1.0, True), (1000, None, True), (200, 0.5, True), (100, 1.0, False), (1000, 0.2, False), (100, 2.0, True)],
)
def test_an_unknown_that_is_a_tenth_of_the_steps_is_said(
    tmp_path: Path, us: int, error: float | None, said: bool
) -> None:
    report = report_of(tmp_path, us, error)
    assert [found.decides for found in report.unmeasured] == [said]
    text = shown(report)
    assert ("UNKNOWN" in text) is said and "my_kernel" in text


def test_what_may_take_many_times_as_long_reaches_up_and_not_below_nothing(tmp_path: Path) -> None:
    head = report_of(tmp_path, 1000, 9.0).headline
    assert head.error is not None and head.error_above is not None
    assert head.error == pytest.approx(0.5 * 0.8, abs=0.02)
    assert head.error_above == pytest.approx(0.5 * 9.0, abs=0.1)

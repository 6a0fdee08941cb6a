"""The error bar of a step, from those of its prices."""

from __future__ import annotations

from math import hypot, sqrt
from pathlib import Path

import pytest

from phantora.trace.analysis.analyze import analyze
from phantora.trace.analysis.report import Report
from phantora.trace.analysis.summary import lines
from phantora.trace.analysis.uncertainty import COMMON, TOGETHER
from phantora.trace.reader import open_log
from tests.support.fakelog import FakeRun, Kind

US = 1000
STEP = 1000 * US
ERROR = 0.4


def report_of(
    folder: Path, kernels: list[tuple[str, str, str]], slower: float = 1.0, shares: dict[str, float] | None = None
) -> Report:
    """Two steps of these kernels, which fill them in equal parts: class, operator and shape of each. On a host 1.5
    times slower the step is `slower` times as long."""
    made = FakeRun()
    made.metadata.extra["common_shares"] = shares or {}
    own = STEP // len(kernels)
    for step in range(2):
        for place, (cls, op, shape) in enumerate(kernels):
            begin = step * STEP + place * own
            price = made.price(cls, "interpolated", error=ERROR)
            sig = made.signature(op, shape)
            made.add(Kind.KERNEL, 0, begin, begin + own, f"kernel of {op}", launch=begin, price=price, sig=sig)
        made.add(Kind.ANNOTATION, 0, step * STEP, (step + 1) * STEP - 1, "Optimizer.step#AdamW.step")
    same, longer = ({"1": ns, "2": ns} for ns in (float(STEP), slower * STEP))
    steps = {"0.6667": same, "1.5": longer}
    made.trailer["host_sensitivity"] = {"steps_ns": steps, "spread": [1, 1.5], "measured": True}
    made.metadata.extra["host"] = {"pace": 1.17}
    return analyze(open_log(made.write(folder / "run.arrow")), details=False)


def bar_of(folder: Path, kernels: list[tuple[str, str, str]], shares: dict[str, float] | None = None) -> float:
    """Without the part that all steps have."""
    headline = report_of(folder, kernels, shares=shares).headline
    assert headline.error is not None and headline.error_above == pytest.approx(headline.error)
    return sqrt(headline.error**2 - COMMON**2)


def test_a_host_that_decides_is_named(tmp_path: Path) -> None:
    """The host is named from an eighth of a step on."""
    kernels = [("gemm", "aten::mm", "[8, 8]")]
    assert "HOST" not in dict(lines(report_of(tmp_path, kernels, slower=1.1)))
    found = dict(lines(report_of(tmp_path, kernels, slower=1.2)))
    assert found["HOST"] == (
        "a slower one would limit the step (the slowest rank's takes 17 % longer than the median's)"
    )


def test_a_host_without_a_range_is_not_said_to_limit_the_error_bar(tmp_path: Path) -> None:
    """As in the replay of a real trace, whose host times are given: no other host's profile narrows it."""
    made = FakeRun()
    for step in range(4):
        launch = step * STEP + STEP // 2
        made.add(Kind.KERNEL, 0, launch, launch + STEP // 4, "gemm", launch=launch, price=made.price("gemm", "real"))
        made.add(Kind.ANNOTATION, 0, step * STEP, (step + 1) * STEP - 1, "Optimizer.step#AdamW.step")
    found = dict(lines(analyze(open_log(made.write(tmp_path / "run.arrow")), details=False)))
    assert found["HOST"].startswith("limits the step") and "bar" not in found["HOST"] and "profile" not in found["HOST"]


def test_one_operator_is_wrong_each_time_that_it_runs(tmp_path: Path) -> None:
    assert bar_of(tmp_path, [("gemm", "aten::mm", "[8, 8]")] * 10) == pytest.approx(ERROR)


def test_operators_of_one_class_are_wrong_together_in_part(tmp_path: Path) -> None:
    shapes = [("gemm", "aten::mm", f"[{size}, 8]") for size in range(10)]
    alone = ERROR / sqrt(10)
    assert bar_of(tmp_path, shapes) == pytest.approx(sqrt(TOGETHER * ERROR**2 + (1 - TOGETHER) * alone**2))
    assert alone < bar_of(tmp_path, shapes) < ERROR


def test_a_gpu_without_a_table_states_what_a_class_has_in_common(tmp_path: Path) -> None:
    """A bar of operators that are all scaled from another architecture shrinks less."""
    shapes = [("attention", "aten::sdpa", f"[{size}, 8]") for size in range(10)]
    share, alone = 0.6, ERROR / sqrt(10)
    found = bar_of(tmp_path, shapes, {"attention": share, "gemm": 0.1})
    assert found == pytest.approx(sqrt(share * ERROR**2 + (1 - share) * alone**2))
    assert bar_of(tmp_path, shapes, {"default": share}) == pytest.approx(found)


def test_classes_are_wrong_independently(tmp_path: Path) -> None:
    two = [("gemm", "aten::mm", "[8, 8]"), ("attention", "aten::sdpa", "[8, 8]")]
    assert bar_of(tmp_path, two) == pytest.approx(hypot(ERROR / 2, ERROR / 2))


def test_prices_of_collectives_are_wrong_together(tmp_path: Path) -> None:
    made = FakeRun()
    for step in range(2):
        begin = step * STEP
        for place in range(4):  # of four sizes
            price = made.price("communication", "fitted", error=ERROR)
            start, end = begin + place * STEP // 4, begin + (place + 1) * STEP // 4
            made.add(
                Kind.COLLECTIVE,
                0,
                start,
                end,
                f"nccl{place}",
                launch=begin,
                ready=start,
                comm=0,
                seq=4 * step + place,
                bytes=1 << place,
                price=price,
                sig=made.signature("c10d::allreduce_", f"[{1 << place}]"),
            )
        made.add(Kind.ANNOTATION, 0, begin, begin + STEP - 1, "Optimizer.step#AdamW.step")
    made.add(Kind.COMMUNICATOR, 0, 0, 0, "group", comm=0, sig=made.signature("ranks", "0"))
    same = {"1": float(STEP), "2": float(STEP)}
    made.trailer["host_sensitivity"] = {"steps_ns": {"0.6667": same, "1.5": same}, "spread": [1, 1], "measured": True}
    reported = analyze(open_log(made.write(tmp_path / "run.arrow")), details=False).headline
    assert reported.error == pytest.approx(hypot(ERROR, COMMON))

"""Messages of a folded run about ranks that are no processes and have a part of their own of an optimizer."""

from __future__ import annotations

import io
from dataclasses import replace
from math import hypot
from pathlib import Path

import pytest
from rich.console import Console

from phantora.fold.mesh import to_dict
from phantora.fold.syntax import parse_fold
from phantora.trace.analysis.analyze import analyze
from phantora.trace.analysis.render import render
from phantora.trace.analysis.report import Report
from phantora.trace.reader import open_log
from tests.support.fakelog import METADATA, FakeRun, Kind

US = 1000
LATE = {0: 0, 2: 30 * US, 7: 100 * US}  # ns by which the processes of a fold of eight come to the collective


def report_of(folder: Path, axes: str, members: str = "0-7") -> Report:
    """Two steps of 1 ms of work and a collective that ends everywhere at once."""
    fold = parse_fold(axes, 8)
    assert fold is not None and fold.real == tuple(LATE)
    made = FakeRun(metadata=replace(METADATA, world_size=8, ranks_per_host=8, extra={"fold": to_dict(fold)}))
    work, sent = (made.price(cls, "measured", error=0.02) for cls in ("gemm", "communication"))
    for rank, late in LATE.items():
        made.add(Kind.COMMUNICATOR, rank, 0, 0, "group", comm=0, sig=made.signature("ranks", members))
        for step in range(2):
            begin = step * 2000 * US
            arrives, ready, end = begin + 1000 * US + late, begin + 1100 * US, begin + 1500 * US
            made.add(Kind.KERNEL, rank, begin, arrives, "update", launch=begin, price=work)
            made.add(
                Kind.COLLECTIVE,
                rank,
                arrives,
                end,
                "ncclDevKernel_AllGather_RING_LL",
                stream=7,
                launch=begin,
                ready=ready,
                comm=0,
                seq=step,
                bytes=1 << 20,
                price=sent,
            )
            made.add(Kind.ANNOTATION, rank, begin, end, "Optimizer.step#AdamW.step")
    same = {"1": 2000 * US, "2": 2000 * US}  # on any host
    steps = {str(factor): same for factor in (0.67, 1.5)}
    made.trailer["host_sensitivity"] = {"steps_ns": steps, "spread": [1, 1], "measured": True}
    return analyze(open_log(made.write(folder / "run.arrow")))


def test_the_last_process_tells_how_late_others_may_be(tmp_path: Path) -> None:
    report = report_of(tmp_path, "dp=8:uneven")
    assert report.headline.uneven == 70 * US  # rank 7 comes so long after rank 2
    console = Console(file=io.StringIO(), width=300)
    render(report, console)
    assert isinstance(console.file, io.StringIO)
    assert "the last process comes 70.00 us of a step" in console.file.getvalue()
    (tmp_path / "even").mkdir()
    even = report_of(tmp_path / "even", "dp=8").headline
    assert even.uneven is None and report.headline.error == even.error
    assert report.headline.error_above is not None and even.error_above is not None
    relative = 70 * US / report.headline.step_time
    assert report.headline.error_above == pytest.approx(hypot(even.error_above, relative))


def test_groups_whose_members_are_all_processes_tell_nothing(tmp_path: Path) -> None:
    assert report_of(tmp_path, "dp=8:uneven", members="0,2,7").headline.uneven is None

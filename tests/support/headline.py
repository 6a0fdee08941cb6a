"""The headline of a log next to what its script measured itself, in virtual time."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from phantora.trace.analysis.analyze import Filters, analyze
from phantora.trace.analysis.report import Report
from phantora.trace.reader import Log
from tests.support.runs import Run

CLOSE = 0.005


def printed_by_loops(run: Run) -> dict[str, dict[str, Any]]:
    """Output of each loop of loops.py or framework_loops.py, by its name, with its rank."""
    printed = {}
    for rank, line in re.findall(r"^\[rank(\d+)\]: (\{\"loop.*)$", run.out, re.MULTILINE):
        found = json.loads(line)
        printed[found["loop"]] = {**found, "rank": int(rank)}
    return printed


def same_headline(log: Log, seconds: float, flops: float, **filters: Any) -> Report:
    """The report of `log`, after a look at its headline: a step takes `seconds`, less the CPU time of data, which the
    script does not see, and the MFU is that of `flops` a step and rank, both within 0.5 %. `filters` as
    :class:`Filters` takes them."""
    report = analyze(log, Filters(**filters), details=False)
    step = report.headline.without_data or report.headline.step_time
    assert step * 1e-9 == pytest.approx(seconds, rel=CLOSE)
    seconds *= report.headline.step_time / step
    peak = log.metadata.peak()
    assert peak is not None
    assert report.headline.mfu == pytest.approx(flops / seconds / peak, rel=CLOSE)
    return report

"""Agreement of what is printed about one log: the lines, the tables below them, the page, JSON and `Run.summary`."""

from __future__ import annotations

import html
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from phantora.api import Run
from phantora.json_data import encode
from phantora.trace.analysis.analyze import Filters, analyze
from phantora.trace.analysis.render import render
from phantora.trace.analysis.report import Report
from phantora.trace.analysis.summary import lines
from phantora.trace.diff.between import between, sides_of
from phantora.trace.diff.compare import Difference
from phantora.trace.diff.render import headline
from phantora.trace.reader import open_log
from phantora.view.pages import report_page

_TIMES = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_NUMBER = re.compile(r"([\d.]+) (ns|us|ms|s)\b")


def agrees(log: Path) -> Report:
    """The report of `log`, all of whose texts have the same numbers."""
    report = analyze(open_log(log))
    said = dict(lines(report))
    text = io.StringIO()
    render(report, Console(file=text, width=500))
    printed = text.getvalue()
    _step(report, said, printed, encode(report))
    _delays(report, said, printed)
    _losses(report, said, printed)
    _page(report, said, printed)
    summary = Run(log).summary()
    assert {key: summary[key] for key in encode(report.headline)} == encode(report.headline)
    return report


def _step(report: Report, said: dict[str, str], printed: str, data: dict[str, Any]) -> None:
    """One step time, in the line, the heading, the tables, and JSON."""
    time = report.headline.step_time
    assert report.steady.time == time == data["headline"]["step_time_ns"] == data["steady"]["time_ns"]
    assert json.loads(json.dumps(data)) == data
    if report.without_gpu or report.details is None or (report.details.fit and not report.details.fit.fits):
        return
    number, unit = _NUMBER.findall(said["STEP"])[0]
    assert float(number) * _TIMES[unit] == pytest.approx(time, rel=0.05), said["STEP"]
    assert f"{number} {unit}" in printed.split("\nFindings")[0].split("\nSteps")[0], said["STEP"]
    if report.headline.mfu is not None and "MFU" in said["STEP"]:
        assert said["STEP"].split("MFU ")[1].startswith(f"{100 * report.headline.mfu:.1f} %")
    if report.headline.settled and len(report.steps) > 1:
        steady = next(row for row in _rows(printed, "Steps (") if row.startswith("steady"))
        rows = _rows(printed, "Ranks (")
        assert len(rows) > 1 or rows[0].split()[1:] == steady.split()[1:], (rows, steady)


def _delays(report: Report, said: dict[str, str], printed: str) -> None:
    """Each share of HELD UP is a row of "Time without compute", whose rows sum to it."""
    whole = report.steady.time
    missing = whole - report.steady.compute
    assert sum(delay.time for delay in report.delays) == pytest.approx(missing, abs=1e-3 * whole + 1)
    rows = _rows(printed, "Time without compute")
    total, _, held_up = re.sub(r" \([^()]*\)", "", said.get("HELD UP", "")).rpartition(" % of the step: ")
    assert not total or float(total) == pytest.approx(100 * missing / whole, abs=0.06)
    for name, share in re.findall(r"([^,]+?) ([\d.]+) %(?:, |$)", held_up):
        assert any(row.startswith(name) and f" {share}%" in row for row in rows), (name, share, rows)


def _losses(report: Report, said: dict[str, str], printed: str) -> None:
    """Each share of LOST is a row of its table; with the MFU and the delays they make up the step."""
    if not report.losses or report.headline.mfu is None:
        return
    delays = sum(delay.time for delay in report.delays) / report.steady.time
    assert sum(loss.share for loss in report.losses) + delays + report.headline.mfu == pytest.approx(1, abs=0.01)
    rows = _rows(printed, "Loss of MFU")
    for kind in re.findall(r"(without flops|below \w+'s peak) \((.*?)\)", said.get("LOST", "")):
        for name, share in re.findall(r"([\w ]+?) ([\d.]+)(?:, |$)", kind[1]):
            assert any(row.startswith(name) and f" {share}%" in row for row in rows), (name, share, rows)


def _page(report: Report, said: dict[str, str], printed: str) -> None:
    """The page has the failure, the lines, the rows behind them, and the mean of the same steps."""
    data = json.loads(html.unescape(report_page(report).partition('id="data">')[2].partition("</script>")[0]))
    *lines_of_page, (word, _) = data["verdict"]
    failed = {"FAILED": report.failure} if report.failure else {}
    assert (dict(lines_of_page), word) == (failed | said, "NEXT")
    shown, whole = data["report"], report.steady.time
    assert shown["headline"] == encode(report.headline, units=False)
    assert shown["steady"] == encode(report.steady, units=False)
    delays = {delay["name"]: f"{100 * delay['time'] / whole:.1f}" for delay in shown["delays"]} if whole else {}
    losses = {loss["name"]: f"{100 * loss['share']:.1f}" for loss in shown["losses"]}
    held_up = re.sub(r" \([^()]*\)", "", said.get("HELD UP", "")).rpartition(" % of the step: ")[2]
    for name, share in re.findall(r"([^,]+?) ([\d.]+) %(?:, |$)", held_up):
        assert delays[name.strip()] == share
    for kind in re.findall(r"\((.*?)\)", said.get("LOST", "")):
        for name, share in re.findall(r"([\w ]+?) ([\d.]+)(?:, |$)", kind):
            assert losses[name.strip()] == share
    fits = report.details is None or report.details.fit is None or report.details.fit.fits
    for line in shown["details"]["findings"]:
        assert line in printed or report.without_gpu or not fits
    assert set(data["mean"]) <= {step.number for step in report.steps if not step.note or report.headline.steps == 0}


def _rows(printed: str, title: str) -> list[str]:
    """Rows of the table that begins with `title`."""
    return printed.partition(f"\n{title}")[2].partition("\n\n")[0].splitlines()[2:]


def names_its_cause(a: Path, b: Path) -> Difference:
    """The difference of two logs: the first cause has its sign and half of its size, or the line names none."""
    (found,) = between(sides_of([open_log(a), open_log(b)], Filters()))
    text, change = headline(found), found.step.change
    if found.significant and text.startswith(("Slower", "Faster")):
        first = found.causes[0]
        decisive = first.effect * change > 0 and 2 * abs(first.effect) >= abs(change)
        assert decisive or "no single cause makes half of it" in text, text
        assert text.startswith("Slower" if change > 0 else "Faster"), text
    return found

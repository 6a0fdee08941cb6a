"""The text at the end of a simulation."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from phantora.errors import PhantoraError, Reason
from phantora.json_data import encode
from phantora.result import RunResult, failure_line

if TYPE_CHECKING:
    from phantora.trace.diff.validation import Validation


class Report:
    """Prints what a simulation gave: the analysis of its log, a summary on stderr (`verbose`: all tables) or JSON on
    stdout, and why it failed, if it did.

    Of a run that failed only whether memory ran out is shown: the script's own error counts.
    """

    def __init__(self, *, summary: bool, as_json: bool, verbose: bool = False, price: float | None = None) -> None:
        self._summary, self._as_json, self._verbose, self._price = summary, as_json, verbose, price
        self._analysis: Any = None

    def analyze(self, result: RunResult) -> None:
        """Prints the summary, once the log is complete; its timeline may take longer."""
        failed = result.reason != Reason.OK
        wanted = self._as_json or (self._summary and (not failed or result.reason == Reason.OUT_OF_MEMORY))
        if result.log is None or not wanted:
            return
        from phantora.cli.progress import progress
        from phantora.trace.analysis.analyze import analyze
        from phantora.trace.analysis.energy import priced
        from phantora.trace.reader import open_log
        from phantora.view.remembered import remember

        # Of a run that failed, whether memory ran out; such logs are short.
        with progress(f"reading {result.log}") as reported:
            found = analyze(open_log(result.log), details=failed or self._verbose, progress=reported)
        remember(str(result.log), found)
        self._analysis = priced(found, self._price)
        if self._summary:
            from phantora.cli.terminal import report_console
            from phantora.trace.analysis.render import render, render_summary

            terminal = report_console(stderr=True)
            (render if self._verbose else render_summary)(self._analysis, terminal)
            if not failed:
                terminal.print(
                    f"[bold]NEXT[/bold]      phantora why {result.log}, phantora view {result.log}", highlight=False
                )

    def end(self, result: RunResult, validation: Validation | None = None) -> None:
        """Prints the rest; `validation` in the JSON."""
        if self._summary and (result.reason == Reason.OK or self._analysis is not None):
            _print_end(result)
        if self._as_json:
            report = result.report.as_data() | {"reason": result.reason.value}
            if self._analysis is not None:
                from phantora.trace.analysis.report import to_json

                report["analysis"] = json.loads(to_json(self._analysis))
            if validation is not None:
                report["validation"] = encode(validation)
            print(json.dumps(report), flush=True)
        _print_failure(result, named=self._summary and self._analysis is not None)


def _print_failure(result: RunResult, named: bool) -> None:
    """The details, if there are any, and a last line that names the failure. `named`: its log is already."""
    if not result.message:
        return
    if result.reason == Reason.INTERRUPTED:
        _report(f"phantora: {result.message}{_partial(result)}")
        return
    if "\n" in result.message:
        _report(f"phantora: {result.message}")
    if result.log is not None and not named:
        _report(f"phantora: partial log {result.log}")
    _report(f"FAILED: {failure_line(result.message, result.reason)}")


def _partial(result: RunResult) -> str:
    """``; partial log run.arrow has 7 steps``."""
    if result.log is None:
        return ""
    from phantora.trace.analysis.steps import find_steps
    from phantora.trace.reader import open_log

    steps = 0
    with suppress(PhantoraError):  # it may have no rows to tell them by
        found = find_steps(open_log(result.log))
        steps = 0 if found.source == "run" else len(found.numbers())
    return f"; partial log {result.log} has {steps or 'no'} step{'s' * (steps != 1)}"


def _report(text: str) -> None:
    with suppress(OSError):  # the terminal has gone
        print(text, file=sys.stderr, flush=True)


def _print_end(result: RunResult) -> None:
    from phantora.cli.terminal import report_console

    report = result.report
    folded = f" ({report.processes} as processes, folded over {report.fold})" if report.fold else ""
    line = f"{report.ranks} rank{'s' if report.ranks > 1 else ''}{folded} ran for {report.wall_seconds or 0:.1f} s"
    if result.log is not None:
        line += f" and simulated {report.simulated_seconds or 0:.3f} s"
        line += f"; {'partial ' * (result.reason != Reason.OK)}log {result.log}"
        line += f"; timeline {', '.join(report.timeline)}" if report.timeline else ""
    report_console(stderr=True).print(f"phantora: {line}", markup=False, highlight=False, soft_wrap=True)

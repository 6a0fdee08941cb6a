"""What a simulation prints at its end."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any

from phantora.errors import Reason
from phantora.result import RunResult, first_line


def print_report(
    result: RunResult, *, summary: bool, as_json: bool, verbose: bool = False, price: float | None = None
) -> None:
    """Prints the analysis of a run's log, a summary on stderr (`verbose`: all tables) or JSON on stdout, and why it
    failed, if it did.

    Of a run that failed only whether memory ran out is shown: the script's own error counts.
    """
    report, analysis = result.report.as_data(), None
    failed = result.reason != Reason.OK
    if result.log is not None and (as_json or (summary and (not failed or result.reason == Reason.OUT_OF_MEMORY))):
        from phantora.trace.analysis.analyze import analyze
        from phantora.trace.analysis.energy import priced
        from phantora.trace.reader import open_log

        # Of a run that failed, whether memory ran out; such logs are short.
        analysis = priced(analyze(open_log(result.log), details=failed or verbose), price)
    if summary and (not failed or analysis is not None):
        _print_summary(result, analysis, verbose)
    if as_json:
        report["reason"] = result.reason.value
        if analysis is not None:
            from phantora.trace.analysis.report import to_json

            report["analysis"] = json.loads(to_json(analysis))
        print(json.dumps(report), flush=True)
    _print_failure(result)


def _print_failure(result: RunResult) -> None:
    """The details, if there are any, and a last line that names the failure."""
    if not result.message:
        return
    if result.reason == Reason.INTERRUPTED:
        _report(f"phantora: {result.message}")
        return
    if "\n" in result.message:
        _report(f"phantora: {result.message}")
    if result.log is not None:
        _report(f"phantora: partial log {result.log}")
    _report(f"FAILED: {first_line(result.message)}")


def _report(text: str) -> None:
    with suppress(OSError):  # the terminal has gone
        print(text, file=sys.stderr, flush=True)


def _print_summary(result: RunResult, analysis: Any, verbose: bool) -> None:
    from phantora.cli.terminal import report_console

    terminal, report = report_console(stderr=True), result.report
    if analysis is not None:
        from phantora.trace.analysis.render import render, render_summary

        (render if verbose else render_summary)(analysis, terminal)
        terminal.print(f"[bold]NEXT[/bold]      phantora view {result.log}", highlight=False)
    folded = f" ({report.processes} as processes, folded over {report.fold})" if report.fold else ""
    line = f"{report.ranks} rank{'s' if report.ranks > 1 else ''}{folded} ran for {report.wall_seconds or 0:.1f} s"
    if result.log is not None:
        line += f" and simulated {report.simulated_seconds or 0:.3f} s"
        line += f"; log {result.log}"
        line += f"; timeline {', '.join(report.timeline)}" if report.timeline else ""
    terminal.print(f"phantora: {line}", markup=False, highlight=False, soft_wrap=True)

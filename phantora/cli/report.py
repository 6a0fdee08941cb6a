"""What a simulation prints at its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phantora.sim.simulator import Stats


def simulation_report(now: Stats, ranks: int, log: Path) -> dict[str, Any]:
    """What a simulator knows at its end. Seconds."""
    return {
        "ranks": ranks,
        "log": str(log),
        "simulated_seconds": now.virtual_ns * 1e-9,
        "records": now.records,
        "simulator_cpu_seconds": round(now.cpu_seconds, 3),
        "sleepers_released": now.releases,
        "late_launches": now.late,
        "device_memory_bytes": now.device_peak,
    }


def print_report(report: dict[str, Any], *, summary: bool, as_json: bool) -> None:
    """Prints `report` and the analysis of its log, if that has rows: a summary on stderr, JSON on stdout."""
    analysis: Any = None
    if (as_json or summary) and report.get("rows"):
        from phantora.trace.analysis.analyze import analyze
        from phantora.trace.reader import open_log

        # Of a run that failed, whether memory ran out; such logs are short.
        analysis = analyze(open_log(report["log"]), details=report.get("status", 0) != 0)
    if summary and (report.get("rows") or "error" not in report):
        _print_summary(report, analysis)
    if as_json:
        if analysis is not None:
            from phantora.trace.analysis.report import to_json

            report["analysis"] = json.loads(to_json(analysis))
        print(json.dumps(report), flush=True)


def _print_summary(report: dict[str, Any], analysis: Any) -> None:
    from phantora.cli.terminal import report_console

    terminal = report_console(stderr=True)
    if analysis is not None:
        from phantora.trace.analysis.render import render

        render(analysis, terminal)
    count = report["ranks"]
    folded = f" ({report['processes']} as processes, folded over {report['fold']})" if "fold" in report else ""
    line = f"{count} rank{'s' if count > 1 else ''}{folded} ran for {report['wall_seconds']:.1f} s"
    if "log" in report:
        line += f" and simulated {report['simulated_seconds']:.3f} s ({report['rows']:,} rows)"
        if report["device_memory_bytes"]:
            taken = report["device_memory_bytes"] / 2**30
            line += f", at most {taken:.2f} GiB of a GPU taken (as nvidia-smi shows it)"
        line += f"; log {report['log']}"
        line += f"; timeline {', '.join(report['timeline'])}" if "timeline" in report else ""
        line += "" if report["rows"] else "; nothing ran on a GPU, so there is no timeline"
    terminal.print(f"phantora: {line}", markup=False, highlight=False, soft_wrap=True)

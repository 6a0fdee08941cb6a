"""``phantora diff``: why a run is slower or faster than another."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from phantora.cli.analyze import filters
from phantora.cli.progress import progress
from phantora.cli.selection import marked_options
from phantora.cli.terminal import report_console
from phantora.errors import PhantoraError

if TYPE_CHECKING:
    from phantora.trace.analysis.analyze import Filters
    from phantora.trace.analysis.report import Report
    from phantora.trace.diff.compare import Difference
    from phantora.trace.reader import Log


@click.command(
    "diff",
    epilog="""Examples:

\b
  phantora diff before.arrow after.arrow
  phantora diff before.arrow after.arrow --fail-above tokens:2%
  phantora diff batch1.arrow batch2.arrow batch4.arrow
""",
)
@click.argument("logs", nargs=-1, required=True, type=click.Path(), metavar="A B [C...]")
@marked_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON (times in ns per step) instead of text.")
@click.option("--html", "html_path", metavar="PATH", help="Write the difference to PATH as one self-contained page.")
@click.option("--timeline", metavar="PATH", help="Write both runs side by side to PATH (.perfetto, .pftrace).")
@click.option(
    "--fail-above",
    metavar="[METRIC:]SHARE",
    help="End with status 1 if a later run is worse than the first by more than SHARE: 2%, tokens:2%. "
    "METRIC: step (default), tokens, samples (per second), mfu, allocated, reserved, memory (the worse of both).",
)
def diff(
    logs: tuple[str, ...],
    ranks: str | None,
    steps: str | None,
    as_json: bool,
    html_path: str | None,
    timeline: str | None,
    fail_above: str | None,
) -> int:
    """Explain why the steps of run B are slower or faster than those of run A.

    The first line names the cause. Clusters and parallel layouts of the runs may differ. Equal runs give
    "No difference." and status 0. A log of `phantora import` compares a real run with a simulation. Each further
    run is compared with the first.
    """
    from phantora.trace.reader import open_log

    if len(logs) < 2:
        raise PhantoraError("one log is nothing to compare; give two or more")
    limit = parse_limit(fail_above) if fail_above else None
    chosen = filters(ranks, steps, None)
    opened = [open_log(path) for path in logs]
    if len(opened) > 2 and (html_path or timeline):
        raise PhantoraError("--html and --timeline show two runs; give two logs")
    reports, differences = differences_of(opened, chosen)
    if html_path:
        from phantora.view.pages import diff_page, write_page

        write_page(html_path, diff_page(differences[0]))
    if timeline:
        from phantora.trace.export.perfetto import write_both

        write_both(opened[0], opened[1], timeline)
    _print(reports, differences, as_json)
    return _gate(differences, limit) if limit else 0


def _print(reports: list[Report], differences: list[Difference], as_json: bool) -> None:
    from phantora.trace.diff.compare import to_json
    from phantora.trace.diff.render import render
    from phantora.trace.diff.side_by_side import as_list, render_many

    if as_json and len(differences) == 1:
        click.echo(to_json(differences[0]))
    elif as_json:
        click.echo(json.dumps(as_list(differences), indent=2))
    elif len(differences) == 1:
        render(differences[0], report_console())
    else:
        render_many(reports, differences, report_console(least=24 + 26 * len(reports)))


def _gate(differences: list[Difference], limit: Limit) -> int:
    """1 if any run is worse than the first by more than the limit."""
    status = 0
    for difference in differences:
        worse = limit.worse(difference)
        if worse > limit.share:
            print(
                f"phantora: {difference.path_b}: {limit.metric} is {100 * worse:.2f}% worse than that of "
                f"{difference.path_a}, more than {100 * limit.share:g}%",
                file=sys.stderr,
            )
            status = 1
    return status


def difference_of(a: Log, b: Log, chosen: Filters) -> tuple[list[Report], Difference]:
    """The reports of both runs and what differs, with its causes."""
    reports, differences = differences_of([a, b], chosen)
    return reports, differences[0]


def differences_of(logs: Sequence[Log], chosen: Filters) -> tuple[list[Report], list[Difference]]:
    """The reports of all runs, and what differs between the first and each other; a simulated run before a real one."""
    from phantora.trace.diff.between import between, sides_of

    sides = sides_of(logs, chosen, progress)
    return [side.report for side in sides], between(sides)


METRICS = {
    "step": "step time", "tokens": "tokens/s", "samples": "samples/s", "mfu": "MFU",
    "memory": "peak memory", "allocated": "allocated memory", "reserved": "reserved memory",
}  # fmt: skip
_OF_MEMORY = {
    "peak memory": ("allocated", "reserved"), "allocated memory": ("allocated",), "reserved memory": ("reserved",),
}  # fmt: skip


@dataclass(frozen=True)
class Limit:
    """How much worse a run may be."""

    metric: str
    share: float

    def worse(self, difference: Difference) -> float:
        """By what share b is worse than a. Raises PhantoraError if the logs do not show the metric."""
        if self.metric == "step time":
            return difference.step.b / difference.step.a - 1 if difference.step.a else 0.0
        if self.metric in _OF_MEMORY:
            peaks = [peak for peak in difference.peaks if peak.name in _OF_MEMORY[self.metric]]
            if not peaks:
                raise PhantoraError(f"--fail-above: the logs do not show {self.metric}; choose another, as step:2%")
            return max(peak.b / peak.a - 1 if peak.a else 0.0 for peak in peaks)
        rate = next((r for r in difference.rates if r.name == self.metric), None)
        if rate is None:
            raise PhantoraError(f"--fail-above: the logs do not show {self.metric}; choose another metric, as step:2%")
        return rate.a / rate.b - 1


def parse_share(text: str, option: str) -> float:
    """``5%`` or ``0.05``. Raises PhantoraError; `option` is named in its message."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", text)
    if match is None:
        raise PhantoraError(f"{option} {text!r} is no share; write it like 5%")
    return float(match[1]) / (100 if match[2] else 1)


def parse_limit(text: str) -> Limit:
    """``"2%"``, ``"0.02"`` or ``"tokens:2%"``."""
    match = re.fullmatch(r"\s*(?:(\w+):)?(\d+(?:\.\d+)?)\s*(%?)\s*", text)
    if match is None or (match[1] or "step") not in METRICS:
        raise PhantoraError(
            f"--fail-above {text!r} is no share; write it like 2% or tokens:2%, of {', '.join(METRICS)}"
        )
    return Limit(METRICS[match[1] or "step"], float(match[2]) / (100 if match[3] else 1))

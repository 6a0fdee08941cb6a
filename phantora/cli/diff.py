"""``phantora diff``: what made one run slower or faster than another."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import click
from rich.console import Console

from phantora.cli.analyze import STEPS, filters
from phantora.cli.progress import progress
from phantora.errors import PhantoraError

if TYPE_CHECKING:
    from phantora.trace.analysis.analyze import Filters
    from phantora.trace.analysis.report import Report
    from phantora.trace.diff.compare import Difference, Side
    from phantora.trace.reader import Log


@click.command("diff")
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@click.option("--ranks", metavar="LIST", help="Only these ranks of both: 0-3,7.")
@click.option("--steps", metavar="[BY/]LIST", help=STEPS)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (times in ns per step) instead of text.")
@click.option("--html", "html_path", metavar="PATH", help="Write the difference to PATH as one self-contained page.")
@click.option("--timeline", metavar="PATH", help="Write both runs side by side to PATH (.perfetto, .pftrace).")
@click.option("--fail-above", metavar="SHARE", help="End with status 1 when b's steps are slower by more: 2%.")
def diff(
    a: str,
    b: str,
    ranks: str | None,
    steps: str | None,
    as_json: bool,
    html_path: str | None,
    timeline: str | None,
    fail_above: str | None,
) -> int:
    """Say what makes the steps of run B slower or faster than those of run A.

    The first line names the cause. Ranks, steps and operators are aligned also when the runs'
    clusters and parallel layouts differ. Equal runs give "No difference." and status 0.
    """
    from phantora.trace.diff.compare import to_json
    from phantora.trace.diff.render import render
    from phantora.trace.reader import open_log

    limit = _share(fail_above) if fail_above else None
    chosen = filters(ranks, steps, None)
    log_a, log_b = open_log(a), open_log(b)
    _, difference = difference_of(log_a, log_b, chosen)
    if html_path:
        from phantora.view.pages import diff_page, write_page

        write_page(html_path, diff_page(difference))
    if timeline:
        from phantora.trace.export.perfetto import write_both

        write_both(log_a, log_b, timeline)
    if as_json:
        click.echo(to_json(difference))
    else:
        render(difference, Console(width=100))
    slower = difference.step.change / difference.step.a if difference.step.a else 0.0
    if limit is not None and slower > limit:
        print(f"phantora: {b} is {100 * slower:.2f}% slower a step than {a}, more than {fail_above}", file=sys.stderr)
        return 1
    return 0


def difference_of(a: Log, b: Log, chosen: Filters) -> tuple[list[Report], Difference]:
    """The reports of both runs and what differs, with its causes."""
    from phantora.trace.diff.causes import find_causes
    from phantora.trace.diff.compare import compare, gather

    def side(log: Log) -> Side:
        with progress(f"reading {log.path}") as told:
            return gather(log, chosen, told)

    x, y = side(a), side(b)
    difference = compare(x, y)
    difference.causes = find_causes(x, y, difference)
    return [x.report, y.report], difference


def _share(text: str) -> float:
    """``"2%"`` or ``"0.02"`` as 0.02."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", text)
    if match is None:
        raise PhantoraError(f"--fail-above {text!r} is no share; write it like 2%")
    return float(match[1]) / (100 if match[2] else 1)

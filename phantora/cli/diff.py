"""``phantora diff``: why a run is slower or faster than another."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from phantora.cli.analyze import filters
from phantora.cli.opening import log_of, note_newer
from phantora.cli.progress import progress
from phantora.cli.selection import marked_options
from phantora.cli.terminal import report_console
from phantora.cli.why import print_answer
from phantora.errors import PhantoraError

if TYPE_CHECKING:
    from phantora.trace.analysis.analyze import Filters
    from phantora.trace.analysis.report import Report
    from phantora.trace.diff.compare import Difference
    from phantora.trace.diff.verdict import Verdict
    from phantora.trace.reader import Log


@click.command(
    "diff",
    epilog="""Examples:

\b
  phantora diff before.arrow after.arrow
  phantora diff before.arrow after.arrow --fail-above tokens:2%
  phantora diff batch1.arrow batch2.arrow batch4.arrow
  phantora diff nccl_trace_rank_* run.arrow    # the first call of a hung job that the simulation does not have
  phantora diff oom.pickle run.arrow           # the allocations of one alone
""",
)
@click.argument("logs", nargs=-1, required=True, type=click.Path(), metavar="A B [C...]")
@marked_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option("--html", "html_path", metavar="PATH", help="Write the difference to PATH as one self-contained page.")
@click.option("--timeline", metavar="PATH", help="Write both runs side by side to PATH (.perfetto, .pftrace).")
@click.option(
    "--fail-above",
    metavar="[METRIC:]SHARE",
    help="End with status 1 if a later run is worse than the first by more than SHARE: 2%, tokens:2%. "
    "METRIC: step (default), tokens, samples (per second), mfu, allocated, reserved, memory (the worse of both), "
    "energy (of a token or step).",
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
    """Explain why run B is slower or faster than run A.

    The first line names the cause. Clusters and parallel layouts of the runs may differ. Equal runs give
    "No difference." and status 0. A log of `phantora import` compares a real run with a simulation. Each further
    run is compared with the first.

    A flight recorder dump or a memory snapshot of a real job is compared with a simulated run of the same script: the
    first call that differs, or the allocations of one alone.
    """
    from phantora.dumps.why import differs, of_a_dump
    from phantora.trace.diff.verdict import judge, parse_limit

    if len(logs) < 2:
        raise PhantoraError("give two or more logs to compare")
    if of_a_dump(logs):
        if html_path or timeline or fail_above or ranks or steps:
            raise PhantoraError("dumps and snapshots are compared as a whole: no option but --json has a meaning")
        print_answer(differs(logs), as_json)
        return 0
    limit = parse_limit(fail_above) if fail_above else None
    chosen = filters(ranks, steps, None)
    note_newer(logs)
    opened = [log_of(path) for path in logs]
    if len(opened) > 2 and (html_path or timeline):
        raise PhantoraError("--html and --timeline show two runs; give two logs")
    reports, differences = differences_of(opened, chosen)
    if html_path:
        from phantora.view.pages import diff_page, write_page

        write_page(html_path, diff_page(differences[0]))
    if timeline:
        from phantora.trace.export.perfetto import write_both

        write_both(opened[0], opened[1], timeline)
    verdicts = [judge(difference, limit) for difference in differences] if limit else []
    _print(reports, differences, verdicts, as_json)
    return _gate(differences, verdicts) if limit else 0


def print_differences(paths: Sequence[str], as_json: bool) -> None:
    """What differs between the log of the first path and each other."""
    from phantora.trace.analysis.analyze import Filters
    from phantora.trace.reader import open_log

    _print(*differences_of([open_log(path) for path in paths], Filters()), [], as_json)


def _print(reports: list[Report], differences: list[Difference], verdicts: list[Verdict], as_json: bool) -> None:
    from phantora.json_data import encode
    from phantora.trace.diff.render import render
    from phantora.trace.diff.side_by_side import render_many

    if as_json:
        found = [encode(difference) for difference in differences]
        for data, verdict in zip(found, verdicts, strict=False):
            data["verdict"] = encode(verdict)
        click.echo(json.dumps(found[0] if len(differences) == 1 else found, indent=2))
    elif len(differences) == 1:
        render(differences[0], report_console())
    else:
        render_many(reports, differences, report_console())


def _gate(differences: list[Difference], verdicts: list[Verdict]) -> int:
    """1 if any run is worse than the first by more than the limit."""
    for difference, verdict in zip(differences, verdicts, strict=True):
        if verdict.result != "pass":
            print(f"phantora: {verdict.result}: {difference.path_b}: {verdict.text}", file=sys.stderr)
    return int(any(verdict.result == "fail" for verdict in verdicts))


def differences_of(logs: Sequence[Log], chosen: Filters) -> tuple[list[Report], list[Difference]]:
    """The reports of all runs, and what differs between the first and each other; a simulated run before a real one."""
    from phantora.trace.diff.between import between, sides_of

    sides = sides_of(logs, chosen, progress)
    return [side.report for side in sides], between(sides)

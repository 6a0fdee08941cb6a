"""``phantora view``: a run in the browser."""

from __future__ import annotations

import sys
import tempfile
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phantora.cli.analyze import filters, report_of
from phantora.cli.diff import difference_of
from phantora.cli.opening import log_of
from phantora.cli.selection import marked_options
from phantora.errors import PhantoraError
from phantora.trace.export.selection import Selection

if TYPE_CHECKING:
    from phantora.trace.analysis.analyze import Filters
    from phantora.trace.analysis.report import Report
    from phantora.trace.reader import Log
    from phantora.view.server import Site
    from phantora.view.what_if import Change, Simulations


@click.command(
    "view",
    epilog="""Examples:

\b
  phantora view run.arrow
  phantora view before.arrow after.arrow
""",
)
@click.argument("log", type=click.Path())
@click.argument("other", type=click.Path(), required=False)
@marked_options
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port  [default: any free one]")
@click.option("--no-browser", is_flag=True, help="Print the address without opening a browser.")
def view(log: str, other: str | None, ranks: str | None, steps: str | None, port: int, no_browser: bool) -> int:
    """Show report and timeline of LOG in the browser.

    With OTHER, show the difference of the two runs.
    The server listens on this machine only and requires the key in the printed address. Ctrl-C ends it.
    """
    from phantora.view.server import Server

    site = site_of(log, other, filters(ranks, steps, None))
    try:
        with Server(site, port) as server:
            print(f"phantora: {server.first_page}\nphantora: Ctrl-C ends it", file=sys.stderr)
            if not no_browser:
                webbrowser.open(server.first_page)
            server.serve_forever()
    except KeyboardInterrupt:
        print(file=sys.stderr)
    finally:
        site.close()
    return 0


def site_of(log: str, other: str | None, chosen: Filters) -> Site:
    """The site of one run, or of two and their difference."""
    from phantora.view.server import Run, Site

    selection = Selection(ranks=chosen.ranks, steps=chosen.steps)
    if other is None:
        read = log_of(log)
        return Site({"a": Run(read, report_of(read.path, chosen), simulations_of(read, chosen))}, selection=selection)
    logs = log_of(log), log_of(other)
    reports, difference = difference_of(*logs, chosen)
    runs = {
        name: Run(own, report, simulations_of(own, chosen))
        for name, own, report in zip("ab", logs, reports, strict=True)
    }
    return Site(runs, difference, selection)


def simulations_of(log: Log, chosen: Filters) -> Simulations | None:
    """The simulations that the page may run on `log`; None without a recording."""
    from phantora.hardware import gpu_names
    from phantora.runs.replay import whole_recording
    from phantora.view.what_if import Simulations

    try:
        whole_recording(log)
    except PhantoraError:
        return None
    return Simulations(tuple(gpu_names()), lambda change: _simulated(log, change, chosen))


def _simulated(log: Log, change: Change, chosen: Filters) -> Report:
    """The report of the recorded run, simulated with `change`."""
    from phantora.runs.replay import ReplaySpec, replay
    from phantora.spec import OutputSpec, WhatIfSpec
    from phantora.trace.analysis.analyze import analyze
    from phantora.trace.reader import open_log

    what_if = WhatIfSpec(
        degrade=(f"*={change.links:g}",) if change.links != 1 else (),
        straggler=(f"rank=0:{change.straggler:g}",) if change.straggler != 1 else (),
    )
    with tempfile.TemporaryDirectory(prefix="phantora-") as folder:
        target = Path(folder) / "what-if.arrow"
        output = OutputSpec(str(target), recording=False)
        gpu = change.gpu or None
        replay(ReplaySpec(Path(log.path), gpu=gpu, host_scale=change.host, what_if=what_if, output=output))
        return analyze(open_log(target), chosen, details=False)

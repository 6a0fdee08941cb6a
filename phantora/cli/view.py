"""``phantora view``: a run in the browser."""

from __future__ import annotations

import sys
import webbrowser
from typing import TYPE_CHECKING

import click

from phantora.cli.analyze import filters, report_of
from phantora.cli.diff import difference_of
from phantora.cli.selection import marked_options
from phantora.trace.export.selection import Selection

if TYPE_CHECKING:
    from phantora.trace.analysis.analyze import Filters
    from phantora.view.server import Site


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
    """Show report, timeline and Perfetto's UI of LOG in the browser; with OTHER, the difference.

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
    from phantora.trace.reader import open_log
    from phantora.view.server import Run, Site

    selection = Selection(ranks=chosen.ranks, steps=chosen.steps)
    if other is None:
        return Site({"a": Run(open_log(log), report_of(log, chosen))}, selection=selection)
    logs = open_log(log), open_log(other)
    reports, difference = difference_of(*logs, chosen)
    runs = {name: Run(*run) for name, run in zip("ab", zip(logs, reports, strict=True), strict=True)}
    return Site(runs, difference, selection)

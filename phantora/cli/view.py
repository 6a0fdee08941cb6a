"""``phantora view``: a run in the browser."""

from __future__ import annotations

import shlex
import sys
import tempfile
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phantora.cli.analyze import filters
from phantora.cli.opening import log_of, note_newer
from phantora.cli.selection import marked_options
from phantora.errors import PhantoraError

if TYPE_CHECKING:
    from phantora.trace.analysis.analyze import Filters
    from phantora.trace.analysis.report import Report
    from phantora.trace.diff.compare import Difference
    from phantora.trace.reader import Log
    from phantora.view.site import Reading, Run, Site
    from phantora.view.what_if import Change, Simulations

_PATIENCE = 1.0  # seconds until the address is given, whether the logs are read or not


@click.command(
    "view",
    epilog="""Examples:

\b
  phantora view run.arrow
  phantora view before.arrow after.arrow
  phantora view
""",
)
@click.argument("log", type=click.Path(), required=False)
@click.argument("other", type=click.Path(), required=False)
@marked_options
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port  [default: any free one]")
@click.option("--no-browser", is_flag=True, help="Print the address without opening a browser.")
def view(log: str | None, other: str | None, ranks: str | None, steps: str | None, port: int, no_browser: bool) -> int:
    """Show report and timeline of LOG in the browser.

    With OTHER, show the difference of the two runs. Without LOG, ask for a script and machines, and compare them.
    The server listens on this machine only and requires the key in the printed address. Ctrl-C ends it.
    """
    from phantora.view.server import Server

    if log is None:
        return _ask(port, no_browser)
    site = reading_site(log, other, filters(ranks, steps, None))
    try:
        site.start(_PATIENCE)
        with Server(site, port) as server:
            assert site.reading is not None
            site.reading.failed = server.shutdown
            print(f"phantora: {server.first_page}\nphantora: Ctrl-C ends it", file=sys.stderr)
            if not no_browser:
                webbrowser.open(server.first_page)
            site.check()
            server.serve_forever()
        site.check()
    except KeyboardInterrupt:
        print(file=sys.stderr)
    finally:
        site.close()
    return 0


ASKED = ("gpus", "count", "vary", "tokens", "rate", "deadline", "price", "margin")
"""Options of ``phantora compare`` that the page asks for."""
COMPARED = Path("compare")
"""Folder of the runs, as of the command."""


def _ask(port: int, no_browser: bool) -> int:
    """The page that asks which machine to rent."""
    from phantora.hardware import gpu_names, system_names
    from phantora.sweeps.compare_page import NAME
    from phantora.view.ask import Asking, AskServer

    asking = Asking(command_of=compare_command, page=COMPARED / NAME)
    offers = {"gpus": [*gpu_names(), *system_names()], "chosen": "H100,H200,B200"}
    try:
        with AskServer(asking, offers, port) as server:
            print(f"phantora: {server.url}\nphantora: Ctrl-C ends it", file=sys.stderr)
            if not no_browser:
                webbrowser.open(server.url)
            server.serve_forever()
    except KeyboardInterrupt:
        print(file=sys.stderr)
    finally:
        asking.close()
    return 0


def compare_command(fields: Mapping[str, str]) -> list[str]:
    """The command line of the form. Raises PhantoraError."""
    from phantora.run_process import PHANTORA

    if unknown := sorted(set(fields) - {"script", *ASKED}):
        raise PhantoraError(f"the form has no field {unknown[0]}")
    try:
        script = shlex.split(fields.get("script", ""))
    except ValueError as error:
        raise PhantoraError(f"the script's arguments cannot be read: {error}") from None
    if not script or (script[0].startswith("-") and script[0] != "-m"):
        raise PhantoraError("name a script, such as train.py --layers 32, or -m MODULE")
    given = [f"--{name}={value.strip()}" for name in ASKED if (value := fields.get(name, "")).strip()]
    return [*PHANTORA, "compare", "--json", "--output", str(COMPARED), *given, *script]


def site_of(log: str, other: str | None, chosen: Filters) -> Site:
    """The site of one run, or of two and their difference, read to its end."""
    site = reading_site(log, other, chosen)
    site.start(None)
    return site


def reading_site(log: str, other: str | None, chosen: Filters) -> Site:
    """The opened file, not read yet."""
    from phantora.view.site import Reading, Site

    paths = [log] if other is None else [log, other]
    note_newer(paths)
    logs = {name: log_of(path) for name, path in zip("ab", paths, strict=False)}
    return Site(chosen=chosen, reading=Reading(logs, lambda reading: _read(reading, chosen)))


def _read(reading: Reading, chosen: Filters) -> tuple[dict[str, Run], Difference | None]:
    from phantora.trace.analysis.analyze import analyze
    from phantora.trace.diff.between import between, sides_of
    from phantora.view.site import Run

    logs = list(reading.logs.values())
    if len(logs) == 1:
        with reading.watched(logs[0].shown) as progress:
            reports = [analyze(logs[0], chosen, progress=progress)]
        difference = None
    else:
        sides = sides_of(logs, chosen, reading.watched)
        reports, difference = [side.report for side in sides], between(sides)[0]
    named = zip(reading.logs.items(), reports, strict=True)
    return {name: Run(log, report, simulations_of(log, chosen)) for (name, log), report in named}, difference


def simulations_of(log: Log, chosen: Filters) -> Simulations | None:
    """The simulations that the page may run on `log`; None without a recording."""
    from phantora.hardware import gpu_names
    from phantora.runs.replay import whole_recording
    from phantora.view.what_if import Simulations

    try:
        whole_recording(log)
    except PhantoraError:
        return None
    return Simulations(tuple(gpu_names()), lambda change: _simulated(log, change, chosen), price_of)


def price_of(gpu: str) -> float | None:
    """Public dollars per hour of a GPU; None for one without a price, or that real runs alone have."""
    from phantora.hardware.prices import SHIPPED, rate_of, rental_prices

    try:
        found = rate_of(gpu, rental_prices(SHIPPED))
    except PhantoraError:
        return None
    return found.dollars if found is not None else None


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
        replay(ReplaySpec(log=Path(log.path), gpu=gpu, host_scale=change.host, what_if=what_if, output=output))
        return analyze(open_log(target), chosen, details=False)

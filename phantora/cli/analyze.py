"""``phantora analyze``: where a run spends time and memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from phantora.cli.opening import log_of, note_newer
from phantora.cli.options import price_option
from phantora.cli.progress import progress
from phantora.cli.selection import marked_options
from phantora.cli.terminal import report_console
from phantora.cli.validating import Reality, show, validate_options
from phantora.errors import PhantoraError
from phantora.trace.export.selection import parse_numbers
from phantora.units import TIME

if TYPE_CHECKING:
    from phantora.trace.analysis.analyze import Filters
    from phantora.trace.analysis.report import Report


@click.command(
    "analyze",
    epilog="""Examples:

\b
  phantora analyze run.arrow --steps 3-5 --ranks 0
  phantora analyze run.arrow --steps annotation:request
  phantora analyze run.arrow --html report.html --json > report.json
""",
)
@click.argument("log", type=click.Path())
@marked_options
@click.option("--time", "stretch", metavar="FROM-TO", help="Select a time range as one step: 950ms-1.2s.")
@price_option
@click.option("-v", "--verbose", is_flag=True, help="Print the cost of the simulation as well.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option("--csv", "csv_directory", metavar="DIRECTORY", help="Write each table to DIRECTORY as CSV.")
@click.option("--html", "html_path", metavar="PATH", help="Write the report to PATH as one page; print PATH alone.")
@validate_options(click.option)
def analyze(log: str, ranks: str | None, steps: str | None, stretch: str | None, **options: Any) -> int:
    """Show where the run of LOG spends time and memory.

    Prints step times, overlap, MFU, exposed communication, idle causes, kernels, operators, collectives, peak
    memory and the critical path.

    Terms are those of HolisticTraceAnalysis. Exposed communication has no compute next to it. Overlap is the share
    of communication with compute.
    """
    from phantora.trace.analysis.energy import priced
    from phantora.trace.analysis.report import to_json

    reality = Reality(options["validate"], options["validate_within"]) if options["validate"] else None
    report = priced(report_of(log, filters(ranks, steps, stretch)), options["price"])
    if options["csv_directory"]:
        from phantora.trace.analysis.tables import tables, write_csv

        write_csv(tables(report), options["csv_directory"])
    if options["html_path"]:
        from phantora.view.pages import report_page, write_page

        write_page(options["html_path"], report_page(report))
    validation = reality.compare(log) if reality is not None else None
    if options["as_json"]:
        click.echo(to_json(report, {"validation": validation} if validation is not None else {}))
    elif options["html_path"]:
        click.echo(options["html_path"])
    else:
        from phantora.trace.analysis.render import render

        render(report, report_console(), options["verbose"])
    return show(validation) if validation is not None else 0


def filters(ranks: str | None, steps: str | None, stretch: str | None) -> Filters:
    """Reads the options ``--ranks``, ``--steps`` and ``--time``. Raises PhantoraError."""
    from phantora.trace.analysis.analyze import Filters

    if stretch and steps:
        raise PhantoraError("--time and --steps both say which time is meant; give one of them")
    by, numbers = parse_steps(steps) if steps else (None, None)
    return Filters(parse_numbers(ranks) if ranks else None, numbers, parse_stretch(stretch) if stretch else None, by)


def parse_steps(text: str) -> tuple[str | None, frozenset[int] | None]:
    """Reads the mark of steps and their numbers: ``"2-4"``, ``"profiler"``, ``"annotation:train/2-4"``."""
    if re.fullmatch(r"[\d,\s-]+", text):
        return None, parse_numbers(text)
    by, slash, numbers = text.rpartition("/")
    if slash and re.fullmatch(r"[\d,\s-]+", numbers):
        return by, parse_numbers(numbers)
    return text, None


def parse_stretch(text: str) -> tuple[int, int]:
    """``"950ms-1.2s"`` in ns; a unit behind the second number goes for both, and without one they are ns."""
    first, _, last = (part.strip() for part in text.partition("-"))
    unit = last.lstrip("0123456789. ") or "ns"
    begin, end = (TIME.read(part + unit * part[-1:].isdigit()) for part in (first, last))
    if begin is None or end is None or not round(begin) < round(end):
        raise PhantoraError(f"{text!r} is no stretch of time; write it like 950ms-1.2s")
    return round(begin), round(end)


def report_of(path: str, chosen: Filters) -> Report:
    """The report of the log at `path`, with a bar on a terminal while it is made."""
    from phantora.trace.analysis.analyze import Filters
    from phantora.trace.analysis.analyze import analyze as analyze_log
    from phantora.view.remembered import remember

    note_newer([path])
    log = log_of(path)
    with progress(f"reading {path}") as reported:
        found = analyze_log(log, chosen, progress=reported)
    if chosen == Filters():
        remember(log.path, found)
    return found

"""``phantora analyze``: what a run spent its time on."""

from __future__ import annotations

import click
from rich.console import Console

from phantora.trace.analysis.render import render
from phantora.trace.analysis.summary import summarize, to_json
from phantora.trace.export.selection import parse_numbers
from phantora.trace.reader import open_log


@click.command("analyze")
@click.argument("log", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print JSON (times in ns) instead of tables.")
@click.option("--ranks", metavar="LIST", help="Only these ranks: 0-3,7.")
@click.option("--steps", metavar="LIST", help="Only these steps: 2-4.")
def analyze(log: str, as_json: bool, ranks: str | None, steps: str | None) -> None:
    """Show step times, overlap, MFU and memory of a run's LOG.

    Terms are those of HolisticTraceAnalysis: exposed is communication that no compute hides,
    overlap the share of communication that it does.
    """
    summary = summarize(
        open_log(log), parse_numbers(ranks) if ranks else None, parse_numbers(steps) if steps else None
    )
    if as_json:
        click.echo(to_json(summary))
    else:
        render(summary, Console(width=100))

"""``phantora export``: a timeline from a log."""

from __future__ import annotations

import click

from phantora.cli.formats import FormatsCommand
from phantora.cli.progress import progress
from phantora.cli.selection import selection_options
from phantora.trace import export as timelines
from phantora.trace.export.selection import Selection, parse_kinds, parse_numbers


def _formats() -> list[tuple[str, str]]:
    listed = [(", ".join(known.suffixes), known.description) for known in timelines.formats()]
    return [*listed, ("DIRECTORY/, x-{rank}.json", "Kineto's JSON, with names of the files")]


@click.command(
    "export",
    cls=FormatsCommand,
    formats=_formats,
    epilog="""Examples:

\b
  phantora export run.arrow -o run.perfetto --steps 3-4
  phantora export run.arrow -o traces/                    # HolisticTraceAnalysis
  phantora export run.arrow -o memory.pickle              # pytorch.org/memory_viz
  phantora export run.arrow -o run.tensorboard            # tensorboard --logdir run.tensorboard
""",
)
@click.argument("log", type=click.Path())
@click.option("-o", "--output", required=True, metavar="PATH", help="Output; the suffix sets the format (see above).")
@selection_options
@click.option("--kinds", metavar="LIST", help="Select kinds of rows, such as kernel,collective (docs/log.md).")
def export(log: str, output: str, ranks: str | None, steps: str | None, kinds: str | None) -> None:
    """Write a timeline of a run's LOG."""
    selection = Selection(
        ranks=parse_numbers(ranks) if ranks else None,
        steps=parse_numbers(steps) if steps else None,
        kinds=parse_kinds(kinds) if kinds else None,
    )
    with progress(f"writing {output}") as reported:
        paths = timelines.export(log, output, selection, reported)
    for path in paths:
        click.echo(path)

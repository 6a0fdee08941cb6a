"""``phantora export``: a timeline from a log."""

from __future__ import annotations

import click

from phantora.cli.progress import progress
from phantora.cli.selection import selection_options
from phantora.trace import export as timelines
from phantora.trace.export.selection import Selection, parse_kinds, parse_numbers


@click.command(
    "export",
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
    """Write a timeline of a run's LOG.

    \b
    .perfetto, .pftrace (.gz)   native trace for ui.perfetto.dev
    .json, .json.gz             Kineto's form: chrome://tracing, HolisticTraceAnalysis; one file per rank
    DIRECTORY/, x-{rank}.json   the same, with names of the files
    .pickle                     torch's memory snapshot, for pytorch.org/memory_viz
    .tensorboard, .wandb        step time, MFU, throughput and memory by step, for TensorBoard and W&B
    .mlflow                     the same, as a run in MLflow's SQLite database
    .et                         Chakra execution traces, one file per rank, for network simulators
    .parquet                    the rows, for pandas, polars, DuckDB and Spark
    """
    selection = Selection(
        ranks=parse_numbers(ranks) if ranks else None,
        steps=parse_numbers(steps) if steps else None,
        kinds=parse_kinds(kinds) if kinds else None,
    )
    with progress(f"writing {output}") as reported:
        paths = timelines.export(log, output, selection, reported)
    for path in paths:
        click.echo(path)

"""``phantora query``: SQL on a run's timeline, by Perfetto's trace processor."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import click

from phantora.errors import PhantoraError

VARIABLE = "PERFETTO_BIN"
_NAMES = ("trace_processor_shell", "trace_processor")


@click.command(
    "query",
    epilog="""Examples:

\b
  phantora query run.arrow "select name, sum(dur) / 1e6 as ms from slice group by name order by ms desc limit 10"
  phantora query run.arrow --json "select * from counter limit 5"
""",
)
@click.argument("log", type=click.Path())
@click.argument("sql")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects instead of a table.")
def query(log: str, sql: str, as_json: bool) -> None:
    """Run a query of SQL on the timeline of a run's LOG.

    Needs the package perfetto and Perfetto's trace processor: the variable PERFETTO_BIN names its program, or it is
    `trace_processor_shell` on PATH. Tables and queries are those of Perfetto (docs/query.md).
    """
    from phantora.trace.export import export

    program = trace_processor()
    with tempfile.TemporaryDirectory(prefix="phantora-query-") as folder:
        path = str(Path(folder, "run.perfetto"))
        export(log, path)
        rows = ask(program, path, sql)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        _print(rows)


def trace_processor() -> str:
    """The path of the program. Raises PhantoraError if there is none."""
    named = os.environ.get(VARIABLE)
    if named and not os.access(named, os.X_OK):
        raise PhantoraError(f"{VARIABLE}={named}: no program is there; name Perfetto's trace_processor_shell")
    found = named or next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        raise PhantoraError(
            "no trace processor: put trace_processor_shell of https://get.perfetto.dev on PATH, or name it in "
            f"{VARIABLE}"
        )
    return found


def ask(program: str, path: str, sql: str) -> list[dict[str, Any]]:
    """The rows that `sql` gives on the trace at `path`. Raises PhantoraError for SQL that is wrong."""
    try:
        from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig, TraceProcessorException
    except ImportError as error:
        raise PhantoraError("phantora query needs the package perfetto: pip install phantora[query]") from error
    try:
        with TraceProcessor(trace=path, config=TraceProcessorConfig(bin_path=program)) as processor:
            return [dict(row.__dict__) for row in processor.query(sql)]
    except TraceProcessorException as error:
        raise PhantoraError(f"the trace processor refuses the query: {error}") from error


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from phantora.cli.terminal import report_console

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in rows[0] if rows else ():
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*("-" if value is None else str(value) for value in row.values()))
    report_console().print(table if rows else "no rows")

"""``phantora schema``: the JSON Schema of a command's ``--json``."""

from __future__ import annotations

import json

import click

COMMANDS = (
    "analyze",
    "cluster-show",
    "compare",
    "diff",
    "doctor",
    "fits",
    "goodput",
    "plan",
    "query",
    "replay",
    "sweep",
    "sweep-dry-run",
    "trace",
    "why",
)


@click.command("schema", epilog="Example: phantora schema analyze > analyze.schema.json")
@click.argument("command", type=click.Choice(COMMANDS))
def schema(command: str) -> None:
    """Print the JSON Schema of the --json output of COMMAND.

    A key ends in the unit of its numbers (step_time_ns, peak_allocated_bytes). Keys without a unit are counts,
    shares (0 to 1) or texts.
    """
    from phantora.cli.printed import schema as schema_of

    click.echo(json.dumps(schema_of(command), indent=2))

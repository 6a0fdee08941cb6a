"""``phantora schema``: the JSON Schema of a command's ``--json``."""

from __future__ import annotations

import json

import click

_COMMANDS = ("analyze", "diff", "trace")


@click.command("schema", epilog="Example: phantora schema analyze > analyze.schema.json")
@click.argument("command", type=click.Choice(_COMMANDS))
def schema(command: str) -> None:
    """Print the JSON Schema of what COMMAND prints with --json.

    Times are ns and sizes bytes, unless a key names another unit. `phantora replay` has that of trace.
    """
    from phantora.json_schema import schemas

    click.echo(json.dumps(schemas()[command], indent=2))

"""phantora doctor: what is covered for the installed torch, and what is missing on this machine."""

from __future__ import annotations

import json

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Check this machine and the installed torch; status 1 if something essential is missing."""
    from phantora import stubs

    report = stubs.doctor()
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=1))
    else:
        click.echo(report.text())
    ctx.exit(0 if report.ok else 1)

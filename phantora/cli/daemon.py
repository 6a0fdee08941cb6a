"""phantora daemon: the processes that have imported torch for the next run."""

from __future__ import annotations

import click


@click.command()
@click.option("--end", is_flag=True, help="End them; their runs go on to their ends.")
def daemon(end: bool) -> None:
    """Show the daemons that keep torch imported for your next run, and their memory.

    `phantora trace` starts one. It ends after 10 minutes without a run (PHANTORA_DAEMON=MINUTES, 0: none), and its
    memory goes back to the system.
    """
    from phantora.launch import daemon as daemons

    found = daemons.running()
    if end:
        daemons.end()
    for one in found:
        click.echo(f"{one}{', ended' if end else ''}")
    if not found:
        click.echo("no daemon")

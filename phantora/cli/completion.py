"""``phantora completion``: the script with which a shell completes commands, options and values."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command(
    epilog="""Examples:

\b
  eval "$(phantora completion bash)"          # in ~/.bashrc; the same for zsh
  phantora completion fish > ~/.config/fish/completions/phantora.fish
"""
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of SHELL."""
    from phantora.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "phantora", "_PHANTORA_COMPLETE").source())

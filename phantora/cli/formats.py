"""Formats of files in the help of a command."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click


class FormatsCommand(click.Command):
    """A command whose help lists formats: ends of their files' names, and a description.

    They are asked for when the help is written, so that the command itself does not import their modules.
    """

    def __init__(self, *arguments: Any, formats: Callable[[], Iterable[tuple[str, str]]], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._formats = formats

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the description of the command, then its formats."""
        super().format_help_text(ctx, formatter)
        with formatter.section("Formats"):
            formatter.write_dl(list(self._formats()))

"""Consoles for reports: as wide as the terminal; without one, as wide as the report."""

from __future__ import annotations

import sys

from rich.console import Console

_UNLIMITED = 10_000  # columns of what no terminal shows


def report_console(stderr: bool = False) -> Console:
    """A console on stdout or stderr. In a file or a pipe a row of a table, and a sentence, is one line."""
    if (sys.stderr if stderr else sys.stdout).isatty():
        return Console(stderr=stderr)
    return Console(stderr=stderr, width=_UNLIMITED, soft_wrap=True)

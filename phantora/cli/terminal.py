"""Consoles for reports: as wide as the terminal, or the width at which a file is read."""

from __future__ import annotations

import sys

from rich.console import Console

_PIPED = 100  # columns of what no terminal shows


def report_console(stderr: bool = False, least: int = 0) -> Console:
    """A console on stdout or stderr. What goes into a file or a pipe has tables of at most 100 columns (or `least`);
    sentences stay one line there, for those who search."""
    if (sys.stderr if stderr else sys.stdout).isatty():
        return Console(stderr=stderr)
    return Console(stderr=stderr, width=max(_PIPED, least), soft_wrap=True)

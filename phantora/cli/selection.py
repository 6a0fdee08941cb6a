"""Options that choose a part of a log, each defined once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

Decorated = Callable[..., Any]
_ranks = click.option("--ranks", metavar="LIST", help="Select ranks: 0-3,7.")


def selection_options(function: Decorated) -> Decorated:
    """`--ranks` and `--steps`, by number."""
    return _ranks(click.option("--steps", metavar="LIST", help="Select steps: 2-4.")(function))


def marked_options(function: Decorated) -> Decorated:
    """`--ranks` and `--steps`, and what marks the steps."""
    steps = click.option(
        "--steps",
        metavar="[BY/]LIST",
        help="Select steps (2-4), the mark of steps (optimizer, profiler, dataloader, annotation:NAME, backward, "
        "pattern, run), or both (profiler/2-4).",
    )
    return _ranks(steps(function))

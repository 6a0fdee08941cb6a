"""Options of the command line alone, that several commands have; those of a run are in ``phantora/options.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from phantora.options import HeadedOption, spellings
from phantora.spec import HEADINGS

Decorated = Callable[..., Any]
_OUTPUT, _CHECKS = HEADINGS[1], HEADINGS[6]
# Options of torchrun without a use on a simulated cluster: (name, takes a value).
IGNORED = (
    ("rdzv-backend", True),
    ("rdzv-endpoint", True),
    ("rdzv-conf", True),
    ("standalone", False),
    ("max-restarts", True),
    ("monitor-interval", True),
    ("start-method", True),
    ("node-rank", True),
    ("master-addr", True),
    ("local-addr", True),
    ("event-log-handler", True),
    ("numa-binding", True),
    ("signals-to-handle", True),
)


def report_options(function: Decorated) -> Decorated:
    """Options for the text at the end of a run."""
    return _all(
        output_option(
            "--summary/--no-summary", default=True, show_default=True, help="Print a summary on stderr at the end."
        ),
        output_option(
            "--json",
            "as_json",
            is_flag=True,
            help="Print the summary as one line of JSON on stdout. The ranks' output goes to stderr.",
        ),
        output_option("-v", "--verbose", is_flag=True, help="Print tables of steps, kernels, collectives and memory."),
        output_option("-q", "--quiet", is_flag=True, help="Print only errors and the script's output."),
        price_option,
    )(function)


def margin_option(function: Decorated) -> Decorated:
    """``--margin``, of the commands that recommend a run."""
    from phantora.trace.analysis.fit import MARGIN

    text = "Share of the fullest GPU's memory that a recommended run leaves free."
    return click.option("--margin", default=f"{MARGIN:.0%}", show_default=True, metavar="SHARE", help=text)(function)


def output_option(*names: str, **more: Any) -> Callable[[Decorated], Decorated]:
    """An option below the heading of outputs."""
    return click.option(*names, cls=HeadedOption, heading=_OUTPUT, **more)


def check_option(*names: str, **more: Any) -> Callable[[Decorated], Decorated]:
    """An option below the heading of checks."""
    return click.option(*names, cls=HeadedOption, heading=_CHECKS, **more)


def price_option(function: Decorated) -> Decorated:
    """The option for the price of a GPU."""
    return output_option(
        "--price",
        type=click.FloatRange(min=0, min_open=True),
        metavar="DOLLARS",
        help="Price per GPU and hour: the summary has the cost of a step and of a million tokens.",
    )(function)


def module_option(function: Decorated) -> Decorated:
    """The option for a module in place of a script."""
    text = "SCRIPT is a module, as in python -m."
    return click.option("-m", "--module", is_flag=True, cls=HeadedOption, heading=HEADINGS[0], help=text)(function)


def _all(*options: Callable[[Decorated], Decorated]) -> Callable[[Decorated], Decorated]:
    def decorate(function: Decorated) -> Decorated:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def ignored_options(function: Decorated) -> Decorated:
    """torchrun's options that are accepted and do nothing."""
    for name, takes_value in reversed((*IGNORED, ("no-python", False))):
        more: dict[str, Any] = {} if takes_value else {"is_flag": True}
        names = spellings(f"--{name}")
        function = click.option(*names, f"ignored_{name.replace('-', '_')}", hidden=True, **more)(function)
    return function

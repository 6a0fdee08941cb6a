"""The options that change a cluster for one run; trace and replay have them alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from phantora.sim.whatif import WhatIf, parse_what_if

_OPTIONS = (
    ("degrade", "LINK=FACTOR[@TIME|@stepN]", "Links of this name (a glob) carry FACTOR of their bandwidth."),
    ("straggler", "rank=R:FACTOR", "Kernels of rank R take FACTOR times as long."),
    ("background", "SRC->DST=RATE", "Traffic of others from GPU SRC to GPU DST, as '0->8=10GB/s'."),
)


def what_if_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for name, form, text in reversed(_OPTIONS):
        function = click.option(f"--{name}", multiple=True, metavar=form, help=f"{text} May be repeated.")(function)
    return function


def take_what_if(options: dict[str, Any]) -> WhatIf:
    """What the options say. Raises PhantoraError."""
    return parse_what_if(*(options[name] for name, _, _ in _OPTIONS))

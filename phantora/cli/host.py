"""The option that names the host; trace and replay have it alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from phantora.hardware import Cluster, HostProfile


def host_option(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option ``--host``; `default` is said in its help."""
    return click.option(
        "--host",
        metavar="NAME|FILE|FACTOR",
        help="Host CPU model: a built-in name, a .toml file, or a multiplier of `default` (1.5 = 50 % slower) or of "
        f"another built-in host (NAME:1.5)  [default: {default}]",
    )


def with_host(cluster: Cluster, text: str | None) -> Cluster:
    """`cluster` with the host that the option names, if it names one. Raises PhantoraError."""
    from phantora.hardware import load_host

    return cluster if text is None else replace(cluster, host=load_host(text))


def host_facts(host: HostProfile) -> dict[str, Any]:
    """What a log's metadata say of the host."""
    return {"name": host.name, "factor": host.factor, "spread": list(host.spread), "measured": host.measured}

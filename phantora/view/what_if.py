"""A change that the page asks for: another GPU, host, network, or a slow rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from phantora.errors import PhantoraError
from phantora.trace.analysis.energy import priced
from phantora.trace.analysis.report import Report, Times

_MOST_CHARACTERS = 64


@dataclass(frozen=True)
class Change:
    """Differences from the recorded run; factors of 1 and an empty `gpu` change nothing."""

    gpu: str = ""
    host: float = 1.0
    """Factor on the time of the host."""
    links: float = 1.0
    """Share of every link's bandwidth, at most 1."""
    straggler: float = 1.0
    """Factor on the duration of rank 0's kernels."""


@dataclass(frozen=True)
class Simulations:
    """Simulations of changes, and the GPUs to choose from."""

    gpus: tuple[str, ...]
    simulate: Callable[[Change], Report]
    """Raises PhantoraError."""
    price: Callable[[str], float | None]
    """Dollars per hour of a GPU by its model; None without a price."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a change gives, or the recorded run."""

    times: Times
    error: float | None
    """Relative error bar of the step, below and above."""
    error_above: float | None
    memory: int
    """Bytes of the fullest GPU; 0 if unknown."""
    capacity: int
    dollars: float | None
    """Per million tokens, else per 1,000 steps; None without a price."""
    tokens: bool
    """`dollars` are per million tokens."""


def outcome(report: Report, price: Callable[[str], float | None]) -> Outcome:
    """Step, memory and cost of a run."""
    headline = priced(report, price(str(report.metadata.get("gpu", "")))).headline
    cost, reserved = headline.cost, max((rank.gpu.peak_reserved for rank in report.ranks), default=0)
    tokens = cost is not None and cost.dollars_per_million_tokens is not None
    return Outcome(
        times=report.steady,
        error=headline.error,
        error_above=headline.error_above,
        memory=int(report.trailer.get("device_memory_bytes", 0)) or int(reserved),
        capacity=int(report.metadata["memory_bytes"]),
        dollars=(cost.dollars_per_million_tokens if tokens else 1000 * cost.dollars_per_step) if cost else None,
        tokens=tokens,
    )


def parse_change(query: Mapping[str, str]) -> Change:
    """The change of a request's query. Raises PhantoraError."""
    gpu = query.get("gpu", "")
    if len(gpu) > _MOST_CHARACTERS:
        raise PhantoraError("unknown GPU")
    host, links = _factor(query, "host", 0, 16), _factor(query, "links", 0.01, 1)
    return Change(gpu, host, links, _factor(query, "straggler", 1, 16))


def _factor(query: Mapping[str, str], name: str, least: float, most: float) -> float:
    text = query.get(name, "1")
    try:
        value = float(text[:_MOST_CHARACTERS])
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise PhantoraError(f"{name}: a number from {least:g} to {most:g}, not {text[:_MOST_CHARACTERS]!r}")
    return value

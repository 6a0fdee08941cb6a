"""What a step would take on other hosts: the trailer's ``host_sensitivity``, read between its points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class OtherHosts:
    """ns of the median steady step."""

    faster: float
    """On a host 1.5 times faster."""
    slower: float
    """On a host 1.5 times slower."""
    low: float
    """On the fastest host that passes for the simulated one."""
    high: float
    """On the slowest."""
    measured: bool
    """The host was measured by `phantora profile host`."""

    def relative(self, step: float) -> tuple[float, float]:
        """How much shorter and longer than `step` it may be, as shares of it."""
        return 1 - self.low / step, self.high / step - 1


def other_hosts(trailer: dict[str, Any], step: float) -> OtherHosts | None:
    """`step`: the same on the simulated host. None where the log does not tell."""
    told = trailer.get("host_sensitivity", {})
    if "step_ns" not in told:
        return None
    known = {1.0: step, **{float(factor): float(ns) for factor, ns in told["step_ns"].items()}}
    factors = sorted(known)
    times = [known[factor] for factor in factors]

    def at(factor: float) -> float:
        return float(np.interp(factor, factors, times))

    low, high = told["spread"]
    return OtherHosts(at(1 / 1.5), at(1.5), min(at(low), step), max(at(high), step), bool(told["measured"]))

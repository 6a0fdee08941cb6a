"""Step on other hosts: the trailer's ``host_sensitivity``, read between its points."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from phantora.json_data import Ns

# What single steps of real runs spread by, half the distance of their 10th and 90th percentiles: 0.5 to 0.9 % of a step
# that the GPU decides (medians of validation/measurements/*/runs.jsonl), 9, 11 and 22 % of one that waits for its
# host (sessions
# `host` there; the host of a shared machine changes its speed within seconds).
GPU_JITTER = 0.007
HOST_JITTER = 0.11


@dataclass(frozen=True)
class OtherHosts:
    """ns of the median steady step."""

    faster: Ns
    """On a host 1.5 times faster."""
    slower: Ns
    """On a host 1.5 times slower."""
    low: Ns
    """On the fastest host that passes for the simulated one."""
    high: Ns
    """On the slowest."""
    measured: bool
    """The host was measured by `phantora profile host`."""

    def jitter(self, step: float) -> float:
        """Spread of single steps of a real run around a median of `step` ns, as a share of it: 8 in 10 lie within.

        The host's part counts as far as a slower host makes the step longer."""
        follows = min(max((self.slower / step - 1) / 0.5, 0.0), 1.0)
        return float(np.hypot(GPU_JITTER, HOST_JITTER * follows))

    def relative(self, step: float) -> tuple[float, float]:
        """Shares by which the step may be shorter and longer than `step`."""
        return 1 - self.low / step, self.high / step - 1


def steps_by_host(trailer: dict[str, Any], steady: Collection[int], waiting: bool = False) -> dict[float, float]:
    """Median of the steps with the numbers `steady`, ns, by factor on the host's time; empty if the log has none. The
    mean, where many are `waiting`."""
    reported = trailer.get("host_sensitivity", {}).get("steps_ns", {})
    found: dict[float, float] = {}
    for factor, by_number in reported.items():
        times = [float(ns) for number, ns in by_number.items() if int(number) in steady]
        if times:
            found[float(factor)] = statistics.mean(times) if waiting else statistics.median(times)
    return found


def other_hosts(
    trailer: dict[str, Any], steady: Collection[int], step: float, waiting: bool = False
) -> OtherHosts | None:
    """`step`: ns of the median of the steps `steady` on the simulated host, or of their mean if many are `waiting`.
    None where the log does not tell."""
    by_host = steps_by_host(trailer, steady, waiting)
    if not by_host:
        return None
    reported = trailer["host_sensitivity"]
    low, high = reported["spread"]
    slower, faster, lowest, highest = (step_on(by_host, step, factor) for factor in (1.5, 1 / 1.5, low, high))
    return OtherHosts(faster, slower, min(lowest, step), max(highest, step), bool(reported["measured"]))


def step_on(by_host: Mapping[float, float], step: float, factor: float) -> float:
    """ns of the step on a host of `factor`, between those of `by_host` and the simulated one, on which it is `step`.
    Where `by_host` has the simulated host, its steps may be others than `step`: their ratios count."""
    known = {1.0: step} | {each: step * ns / by_host.get(1.0, step) for each, ns in by_host.items()}
    factors = sorted(known)
    return float(np.interp(factor, factors, [known[each] for each in factors]))

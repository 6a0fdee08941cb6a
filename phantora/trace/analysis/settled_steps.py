"""Steps before the GPUs' power limiters have settled, and the time of a settled step.

A limiter follows what its GPU draws within some 0.4 s (``settling_ns`` of the metadata). Until then steps are shorter
than those of a long run, by up to 10 %. The trailer's ``settled`` has the time that each step takes once the limiters
have settled: the recording was simulated until they had (``runs/sensitivity.py``).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from phantora.trace.reader import Log

SETTLING = "settling"
"""The note of a step that comes before the limiters have settled."""
_TOLERANCE = 0.005  # of a settled step's time by which a step may differ from it
_APART = 5.0  # times what the others differ by, a second step differs from them


@dataclass(frozen=True)
class Settled:
    """Facts about the limiters' settling."""

    notes: dict[int, str]
    """Note by number of each step that is too early."""
    predicted: bool = False
    """No step of the run is settled, and the trailer has the time of one."""
    short_ns: float = 0.0
    """ns of steps by which the run is too short, where its settled step is unknown."""


def settle(steps: Mapping[int, tuple[int, int, float]], source: str, log: Log) -> Settled:
    """`steps` have no note otherwise: first start, last end and mean time in ns, by number; the first of them follows
    the start-up. `source` is what found them."""
    needed = float(log.metadata.extra.get("settling_ns", 0.0))
    settled = log.trailer.get("settled", {})
    if not steps or not needed:
        return Settled({})
    if not settled:
        return Settled(_second(steps))
    begin = min(start for start, _, _ in steps.values())
    late = [time for start, _, time in steps.values() if start >= begin + needed]
    times = settled.get("steps_ns", {}).items()
    known = {int(number): float(ns) for number, ns in times if settled["source"] == source}
    expected = {number: known[number] for number in steps if number in known}
    if not expected and late:
        expected = dict.fromkeys(steps, statistics.median(late))
    if not expected:
        passed = max(end for _, end, _ in steps.values()) - begin
        return Settled({}, short_ns=max(0.0, needed - passed))
    off = {number: abs(time / expected[number] - 1) for number, (_, _, time) in steps.items() if number in expected}
    early = [number for number, share in off.items() if share > _TOLERANCE and steps[number][0] < begin + needed]
    if len(early) < len(steps):
        return Settled(dict.fromkeys(early, SETTLING))
    return Settled(dict.fromkeys(sorted(early)[:-1], SETTLING), True)


def _second(steps: Mapping[int, tuple[int, int, float]]) -> dict[int, str]:
    """The first step behind the start-up, where all others take much the same and it does not: its host still finds
    queues empty that are full later."""
    (first, (_, _, own)), *rest = sorted(steps.items())
    times = [time for _, (_, _, time) in rest]
    if len(times) < 2:
        return {}
    off, spread = abs(own / statistics.median(times) - 1), max(times) / min(times) - 1
    return {first: SETTLING} if off > _TOLERANCE and spread <= max(_TOLERANCE, off / _APART) else {}

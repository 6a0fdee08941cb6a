"""Steps that wait for their data, of which the clock counts nothing (``--data-loading free``)."""

from __future__ import annotations

from phantora.hardware import REFERENCE_HOST, HostProfile, load_host
from phantora.profile.python_probe import python_ns

PROBE = "python"


def slowdown(data: tuple[int, int, int], host: HostProfile) -> float:
    """Times as long as simulated: the time from one batch to the next, if their making counts, on the slowest host that
    passes for `host`. Its CPU time here is scaled to `host` by that of Python's work. 1 without batches.

    `data`: ``data_cpu``, ``data_counted`` and ``data_apart`` of ``wire.layout.Control``."""
    cpu, counted, apart = data
    if not apart:
        return 1.0
    there = host.probe_ns.get(PROBE) or load_host(REFERENCE_HOST).probe_ns[PROBE] * host.factor
    made = cpu * there / python_ns() * host.spread[1]
    needed = made if counted < 0 else apart + made - counted
    return max(1.0, needed / apart)

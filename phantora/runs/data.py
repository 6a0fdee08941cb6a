"""CPU time of data on the simulated host (``--data-loading``)."""

from __future__ import annotations

from phantora.hardware import REFERENCE_HOST, HostProfile, load_host
from phantora.profile.python_probe import python_ns
from phantora.rank.patches.loading import MEASURED
from phantora.spec import AUTO

PROBE = "python"


def pace(host: HostProfile) -> float:
    """CPU time on `host` over that on this machine, of Python's work."""
    there = host.probe_ns.get(PROBE) or load_host(REFERENCE_HOST).probe_ns[PROBE] * host.factor
    return there / python_ns()


def scaled(cost: str, host: HostProfile) -> str:
    """The cost of a batch as ranks read it: measured ones are this machine's CPU time as `host` would take it."""
    return f"{cost}:{pace(host):.3g}" if cost in (AUTO, MEASURED) else cost


def slowdown(data: tuple[int, int, int], host: HostProfile, slower: float = 1.0) -> float:
    """Times as long as simulated: the time from one batch to the next, if their making counts, on a host `slower` times
    as slow as `host`. Its CPU time here is scaled to `host` by that of Python's work. 1 without batches.

    `data`: ``data_cpu``, ``data_counted`` and ``data_apart`` of ``wire.layout.Control``."""
    cpu, counted, apart = data
    if not apart:
        return 1.0
    made = cpu * pace(host) * slower
    needed = made if counted < 0 else apart + made - counted
    return max(1.0, needed / apart)

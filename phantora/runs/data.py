"""CPU time of data on the simulated host (``--data-loading``)."""

from __future__ import annotations

from phantora.hardware import REFERENCE_HOST, HostProfile, load_host

PROBE = "python"


def python_ns(host: HostProfile) -> float:
    """Time of a call of :func:`phantora.python_probe.python` on `host`, ns."""
    return host.probe_ns.get(PROBE) or load_host(REFERENCE_HOST).probe_ns[PROBE] * host.factor


def slowdown(data: tuple[int, int, int], slower: float = 1.0) -> float:
    """Times as long as simulated: the time from one batch to the next, if their making counts, on a host `slower` times
    as slow as the simulated one. 1 without batches.

    `data`: ``data_cpu``, ``data_counted`` and ``data_apart`` of ``wire.layout.Control``."""
    cpu, counted, apart = data
    if not apart:
        return 1.0
    made = cpu * slower
    needed = made if counted < 0 else apart + made - counted
    return max(1.0, needed / apart)

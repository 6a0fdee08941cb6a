"""Spread of single steps of a real run."""

from __future__ import annotations

import pytest

from phantora.trace.analysis.hosts import GPU_JITTER, HOST_JITTER, other_hosts

STEP = 100e6


def jitter(slower: float, faster: float) -> float:
    steps = {"0.6666": {"1": faster * STEP}, "1.5": {"1": slower * STEP}}
    reported = {"steps_ns": steps, "spread": [1.0, 1.0], "measured": True}
    hosts = other_hosts({"host_sensitivity": reported}, {1}, STEP)
    assert hosts is not None
    return hosts.jitter(STEP)


def test_of_a_step_that_the_gpu_decides() -> None:
    assert jitter(1.0, 1.0) == pytest.approx(GPU_JITTER)


def test_of_a_step_that_waits_for_its_host() -> None:
    assert jitter(1.5, 0.67) == pytest.approx((GPU_JITTER**2 + HOST_JITTER**2) ** 0.5, rel=0.01)


def test_between_them_it_grows_with_what_a_slower_host_costs() -> None:
    few, many = jitter(1.1, 1.0), jitter(1.3, 0.8)
    assert GPU_JITTER < few < many < HOST_JITTER

"""The memory of a host: sums over its ranks, and the verdict."""

from __future__ import annotations

import numpy as np
import pytest

from phantora.hardware.clusters import load_cluster
from phantora.trace.analysis.host_memory import host_memory
from phantora.units import GIB
from phantora.wire.session import Session, SessionConfig


@pytest.mark.parametrize(
    ("real", "of_rank", "host"),
    [(None, [1, 2, 5, 4], 9), ([0], [3, 0, 0, 0], 6), ([0, 2, 3], [5, 0, 3, 4], 10)],
    ids=["all are processes", "one stands for all", "one stands for its host"],
)
def test_the_fullest_host_counts(real: list[int] | None, of_rank: list[int], host: int) -> None:
    gpu = {"name": "any"}
    session = Session.create(SessionConfig(4, 2, real=real), gpu, {})
    session.control["host_memory"][:] = np.array(of_rank)
    session.control["host_pinned"][:] = 1
    assert session.host_memory() == (host, 2)


def test_a_host_runs_out_of_memory() -> None:
    extra = {"host_memory_bytes": 10 * GIB}
    short = host_memory(extra, {"host_memory_bytes": 12 * GIB, "host_pinned_bytes": 4 * GIB})
    assert short is not None and short.short and "2.00 GiB more than it has" in short.verdict()
    fits = host_memory(extra, {"host_memory_bytes": 8 * GIB, "host_pinned_bytes": 4 * GIB})
    assert fits is not None and not fits.short and "20.0% left" in fits.verdict()
    unknown = host_memory({}, {"host_memory_bytes": 8 * GIB})
    assert unknown is not None and not unknown.short and str(unknown) == "8.0 GiB (0.0 pinned)"
    assert host_memory({}, {}) is None


def test_known_systems_have_their_memory() -> None:
    assert load_cluster("dgx-h100:2").host_memory == 2048 * GIB
    assert load_cluster("1x8xH100").host_memory == 0


def test_the_slowest_loader_counts() -> None:
    session = Session.create(SessionConfig(4, 2), {"name": "any"}, {})
    assert session.loader() == {}
    for name, of_rank in {"batch": [5, 5, 64, 6], "used": [66, 66, 2, 66]}.items():
        session.control[f"data_{name}"][:] = np.array(of_rank)
    assert session.loader() == {"batch": 64, "used": 2, "workers": 0, "starts": 0, "rank": 2}
    session.control["data_batch"][2] = 7  # as long as the others', nearly
    assert session.loader() == {"batch": 5, "used": 66, "workers": 0, "starts": 0}


def test_times_of_data_and_of_uncounted_work_are_those_of_the_rank_that_decides() -> None:
    session = Session.create(SessionConfig(4, 2), {"name": "any"}, {})
    assert session.data() == ((0, -1, 0), None) and session.uncounted() == 0
    for name, of_rank in {"cpu": [0, 5, 6, 64], "counted": [0, -1, -1, -1], "apart": [0, 8, 8, 8]}.items():
        session.control[f"data_{name}"][:] = np.array(of_rank)
    assert session.data() == ((64, -1, 8), 3), "the slowest by far"
    session.control["data_cpu"][3] = 6
    assert session.data() == ((5, -1, 8), 1), "the first that loads"
    for name, time in {"cpu": 5, "counted": -1, "apart": 8}.items():
        session.control[f"data_{name}"][0] = time
    assert session.data() == ((5, -1, 8), None), "all load, none much longer"
    session.control["cpu_uncounted"][:] = [10, 11, 12, 11]
    assert session.uncounted() == 10
    session.control["cpu_uncounted"][2] = 70
    assert session.uncounted() == 70

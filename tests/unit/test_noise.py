"""Noise of samples: warps of host clocks, kernels, the expected slowest of several ranks."""

from __future__ import annotations

import numpy as np
import pytest

from phantora.hardware.hosts import load_host
from phantora.hardware.types import HostJitter
from phantora.profile.jitter_probe import jitter_of
from phantora.sim.noise import DRIFT_MACHINES, DRIFT_SHARE, Machine, Noise, Warp, machines
from phantora.trace.analysis.spread import expected_slowest, spread_of
from phantora.wire import layout
from phantora.wire.records import answered, fields, make

QUIET = HostJitter(spread=0.0, pauses_per_second=0.0)
MINUTE = 60_000_000_000


def clocks(jitter: HostJitter, rank: int = 0, common: bool = False, ranks: int = 1) -> np.ndarray:
    return Noise(7, 3, common).of_host(rank, jitter, ranks, 1.0)(np.arange(0, MINUTE, 1_000_000))


def test_a_quiet_host_keeps_its_clock() -> None:
    assert clocks(QUIET).tolist() == list(range(0, MINUTE, 1_000_000))


def test_a_clock_never_goes_back_and_is_the_same_in_pieces() -> None:
    whole = clocks(HostJitter())
    warp = Noise(7, 3).of_host(0, HostJitter(), 1, 1.0)
    pieces = [warp(part) for part in np.array_split(np.arange(0, MINUTE, 1_000_000), 7)]
    assert (np.diff(whole) >= 0).all() and np.concatenate(pieces).tolist() == whole.tolist()


def test_paces_have_their_spread() -> None:
    jitter = HostJitter(spread=0.2, lasts_ns=10e6, pauses_per_second=0.0)
    assert np.log(np.diff(clocks(jitter)) / 1e6).std() == pytest.approx(0.2, rel=0.05)


@pytest.mark.parametrize("ranks", [1, 4])
def test_ranks_of_a_host_share_its_pauses(ranks: int) -> None:
    jitter = HostJitter(spread=0.0, pauses_per_second=20.0, pause_ns=30e6)
    paused = clocks(jitter, ranks=ranks)[-1] - MINUTE
    assert paused == pytest.approx(60 * 20 / ranks * 30e6, rel=0.15)


def test_the_probe_finds_the_jitter_of_a_host() -> None:
    jitter = HostJitter(spread=0.12, pauses_per_second=3.0, pause_ns=30e6)
    found = jitter_of(np.diff(Noise(7, 3).of_host(0, jitter, 1, 1.0)(np.arange(0, MINUTE, 200_000))))
    assert found.spread == pytest.approx(0.12, rel=0.1) and found.machines_spread == found.machines_pauses == 0
    assert (found.pauses_per_second, found.pause_ns) == pytest.approx((3.0, 30e6), rel=0.3)


def test_machines_that_pass_for_a_host_have_its_range_of_paces() -> None:
    found = machines(load_host("default"), 20, 0)
    paces = [one.pace for one in found]
    assert paces[0] == pytest.approx(0.44, rel=0.25) and paces[-1] == pytest.approx(1.5, rel=0.1)
    assert np.median(paces) == pytest.approx(1, abs=0.05)
    assert np.log([one.spread for one in found]).std() == pytest.approx(HostJitter().machines_spread, rel=0.15)
    drift = [one.drift for one in found]
    assert np.log(drift).std() == pytest.approx(DRIFT_MACHINES, rel=0.15)
    assert np.exp(np.log(drift).mean()) == pytest.approx(1)
    assert Noise(7, 3, machine=Machine(drift=2)).of_engine().drift_share == 2 * DRIFT_SHARE
    quiet = Noise(7, 3, machine=Machine(spread=0, pauses=0)).of_host(0, HostJitter(), 1, 1.0)
    assert quiet(np.asarray([MINUTE])).tolist() == [MINUTE]


def test_a_pause_that_outlasts_a_wait_ends_it_later() -> None:
    """A rank waits from 0.5 s to 1.5 s; a pause of 100 ms begins at 1.45 s, so it notices the end at 1.55 s."""
    (asked,) = make("STREAM_SYNC", time=500_000_000).reshape(1, -1)
    asked.view(answered())["resumes"] = 1_500_000_000

    class Pause(Warp):
        def _extend(self) -> None:
            self._at = np.asarray([0.0, 1.45e9, 1e12])
            self._clock = np.asarray([0.0, 1.55e9, 1e12])
            self._pace = np.ones(2)
            self._paused = np.asarray([0.0, 1e8, 0.0])

    (changed,) = Pause(HostJitter(), 1.0, np.random.default_rng(0)).records([asked])
    assert changed.view(answered())["resumes"].tolist() == [1_600_000_000 - 50_000_000]


def test_ranks_differ_unless_their_noise_is_common() -> None:
    assert (clocks(HostJitter(), 0) != clocks(HostJitter(), 1)).any()
    assert (clocks(HostJitter(), 0, common=True) == clocks(HostJitter(), 1, common=True)).all()


def test_every_host_clock_of_a_record_is_warped() -> None:
    records = np.concatenate(
        [
            make("OP_BEGIN", slot=layout.CONSTANTS["PH_NO_SLOT"], time=3000, start=2000),
            make("STREAM_SYNC", time=4000),
            make("STREAM_SYNC", time=9000),
        ]
    )
    records.view(answered())["resumes"][1:] = 8000, -1

    class Double(Warp):
        def __call__(self, times: np.ndarray) -> np.ndarray:
            return 2 * times

    (changed,) = Double(HostJitter(), 1.0, np.random.default_rng(0)).records([records])
    assert changed["time"].tolist() == [6000, 8000, 18000]
    assert changed.view(fields("OP_BEGIN"))["start"][0] == 4000
    assert changed.view(answered())["resumes"][1:].tolist() == [16000, -1]


def test_the_slowest_of_several() -> None:
    assert expected_slowest([1.0, 3.0], 1) == 2.0
    assert expected_slowest([1.0, 3.0], 2) == pytest.approx(2.5)
    assert expected_slowest([1.0, 3.0], 100) == pytest.approx(3.0)


def test_what_ranks_wait_is_the_difference_to_ranks_with_equal_noise() -> None:
    found = spread_of({"spread": {"steps_ns": [110.0, 130.0], "equal_ranks_ns": [90.0, 110.0]}})
    assert found is not None and found.waits == pytest.approx(0.2) and found.longest == 130
    assert spread_of({}) is None

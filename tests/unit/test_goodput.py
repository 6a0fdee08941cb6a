"""From a step to a job: the Monte Carlo against closed forms and against published jobs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from phantora.cli.goodput import goodput
from phantora.errors import PhantoraError
from phantora.jobs.job import (
    DAY,
    HOUR,
    REPLICATED,
    Checkpoints,
    Job,
    Machines,
    best_interval,
    expected_time,
    mtbf_of_losses,
    spares_for,
    young_interval,
)
from phantora.jobs.montecarlo import play
from phantora.trace.reader import open_log

LOG = Path(__file__).parents[1] / "golden" / "small.arrow"
LLAMA = Machines(gpus=16384)


def job(machines: Machines, interval: float, cost: float = 20.0, restart: float = 600.0, days: float = 20.0) -> Job:
    return Job(days * DAY, machines, Checkpoints(cost, interval), restart)


@settings(max_examples=15, deadline=None)
@given(st.floats(0.5, 50), st.floats(60, 3600), st.floats(0, 120), st.floats(0, 1200))
def test_the_mean_is_dalys(mtbf_hours: float, interval: float, cost: float, restart: float) -> None:
    """Exponential failures, in checkpoints and restarts too: the closed form is exact for whole intervals."""
    machines = Machines(gpus=1, gpus_per_host=1, gpu_mtbf_hours=2 * mtbf_hours, host_mtbf_hours=2 * mtbf_hours)
    assert machines.mtbf == pytest.approx(mtbf_hours * HOUR)
    work = interval * 200
    played = play(Job(work, machines, Checkpoints(cost, interval), restart), trials=1500)
    # The closed form has a checkpoint after the last interval, and a restart before the first.
    exact = expected_time(work, interval, cost, restart, machines.mtbf)
    error = 4 * played.time.std() / np.sqrt(1500) + cost + restart
    assert abs(played.time.mean() - exact) < error
    assert sum(part.sum() for part in played.parts.values()) == pytest.approx(played.time.sum())


def test_the_best_interval_is_youngs_where_checkpoints_are_cheap() -> None:
    assert best_interval(10, 600, 50 * HOUR) == pytest.approx(young_interval(10, 50 * HOUR), rel=0.01)
    best, young, ratio = best_interval(120, 600, 2 * HOUR), young_interval(120, 2 * HOUR), 120 / (4 * HOUR)
    assert best == pytest.approx(young * (1 + ratio**0.5 / 3 + ratio / 9) - 120, rel=0.002), "Daly's equation 37"
    times = [play(job(replace(LLAMA, gpus=24576), x, 120)).time.mean() for x in (best / 3, best, 3 * best)]
    assert times[1] < min(times[0], times[2])


def test_llama_3() -> None:
    """419 unexpected interruptions in 54 days on 16,384 GPUs, over 90 % of the time effective (arXiv 2407.21783)."""
    played = play(job(LLAMA, best_interval(5, 600, LLAMA.mtbf), cost=5, days=49.5))
    assert played.time.mean() == pytest.approx(54 * DAY, rel=0.01)
    assert played.failures.mean() == pytest.approx(419, rel=0.01)
    assert 0.90 < (played.parts["useful"] / played.time).mean() < 0.93, "with restarts of 10 min"
    assert played.failures.std() == pytest.approx(np.sqrt(419), rel=0.2)


def test_stragglers_spares_and_lags_cost_time() -> None:
    plain = play(job(LLAMA, 900)).time.mean()
    slow = play(job(replace(LLAMA, spread=0.01), 900))
    assert slow.parts["stragglers"].mean() / slow.parts["useful"].mean() == pytest.approx(0.0399, rel=0.02)
    enough = spares_for(replace(LLAMA, repair=8 * HOUR))
    assert enough == 10  # P(9 or fewer of a mean of 2.6 under repair) is 99.9 %
    few, many = (play(job(replace(LLAMA, repair=8 * HOUR, spares=n), 900)) for n in (1, enough))
    assert many.parts["hosts"].mean() < 0.001 * plain < few.parts["hosts"].mean()
    lag = play(replace(job(LLAMA, 900), checkpoints=Checkpoints(20, 900, lag=600))).time.mean()
    assert lag - plain == pytest.approx(600 * 20 * DAY / LLAMA.mtbf, rel=0.25)


def test_reclaims_of_spot_instances() -> None:
    """64 hosts of which 5 % go in an hour: 3.2 stops an hour. Two minutes are enough for a checkpoint of 20 s."""
    spot = Machines(gpus=512, gpu_mtbf_hours=1e9, host_mtbf_hours=1e9, reclaims=0.05)
    assert spot.mtbf == pytest.approx(HOUR / 3.2, rel=1e-4) and spot.reclaimed == pytest.approx(1.0)
    plain = play(job(spot, 900)).time.mean()
    assert plain == pytest.approx(expected_time(20 * DAY, 900, 20, 600, HOUR / 3.2), rel=0.01)
    warned = play(job(replace(spot, notice=120.0), 900))
    assert warned.parts["lost"].mean() < 0.02 * warned.time.mean() < play(job(spot, 900)).parts["lost"].mean()
    assert sum(part.sum() for part in warned.parts.values()) == pytest.approx(warned.time.sum())
    assert mtbf_of_losses(replace(spot, notice=120.0), Checkpoints(200, 900)) == spot.mtbf, "no time for it"


def test_a_checkpoint_in_memory_is_lost_with_both_hosts() -> None:
    """2 hosts that fail every 2 h: within the 10 min of a restart the other fails in 8 % of the cases."""
    machines = Machines(gpus=2, gpus_per_host=1, gpu_mtbf_hours=1e9, host_mtbf_hours=2)
    kept = job(machines, 60, cost=1)
    lost = replace(kept, checkpoints=Checkpoints(1, 60, 0, REPLICATED))
    more = play(lost).parts["lost"].mean() - play(kept).parts["lost"].mean()
    failures = play(lost).failures.mean()
    assert more == pytest.approx(failures * (1 - np.exp(-1 / 12)) * HOUR / 2, rel=0.1)


def test_a_long_job_repeats_a_shorter_one() -> None:
    long, short = (play(job(replace(LLAMA, gpus=100_000), 300, days=days), 300) for days in (600, 60))
    assert long.time.mean() == pytest.approx(10 * short.time.mean(), rel=0.01)
    assert long.time.std() == pytest.approx(np.sqrt(10) * short.time.std(), rel=0.2)


def test_the_error_of_the_step_widens_the_range() -> None:
    machines = Machines(gpus=8, gpu_mtbf_hours=1e9, host_mtbf_hours=1e9)
    time = play(replace(job(machines, 3600), error=(0.05, 0.2))).time
    low, middle, high = np.percentile(time, (5, 50, 95)) / (20 * DAY * (1 + 20 / 3600))
    assert (low, middle, high) == pytest.approx((0.95, 1.0, 1.2), abs=0.02)


def test_numbers_are_checked() -> None:
    for option, wrong in (("--every", "20"), ("--every", "0s"), ("--repair", "-3s"), ("--stragglers", "150%")):
        with pytest.raises(PhantoraError, match=option):
            CliRunner().invoke(goodput, [str(LOG), option, wrong], catch_exceptions=False)


def test_a_log_becomes_a_job() -> None:
    run = CliRunner().invoke(
        goodput,
        [
            str(LOG),
            "--steps",
            "1000000000",
            "--gpus",
            "4096",
            "--price",
            "2",
            "--json",
            "--trials",
            "50",
            "--checkpoint-cost",
            "5s",
        ],
    )
    assert run.exit_code == 0, run.output
    found = json.loads(run.output)
    assumed, world = found["assumed"], open_log(LOG).metadata.world_size
    assert [text.partition(" (")[0] for text in assumed] == [
        "a restart takes 10 min",
        "failures are as frequent as Llama 3's",
        f"a step takes as long as in the log on {world} GPUs, {open_log(LOG).metadata.ranks_per_host} a host",
    ]
    assert found["job"]["machines"]["gpus"] == 4096
    assert found["time_seconds"][0] * 2 * 4096 / HOUR == pytest.approx(found["dollars"][0])
    assert sum(found["shares"].values()) == pytest.approx(1)
    text = CliRunner().invoke(goodput, [str(LOG), "--trials", "50"]).output
    assert "ASSUMED" in text and "USEFUL" in text and max(map(len, text.splitlines())) <= 100

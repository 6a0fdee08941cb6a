"""Time for which the simulator waits for idle ranks before it reports a hang."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from phantora.errors import PhantoraError
from phantora.hardware import device_fields, load_cluster
from phantora.sim.config import SimulatorConfig
from phantora.sim.simulator import Simulator
from phantora.trace.schema import RunMetadata, Tables
from phantora.trace.writer import LogWriter
from phantora.wire.session import Session, SessionConfig
from tests.support.fakeranks import FakeRank
from tests.support.fixed_costs import FixedCosts

HANG = 0.3  # seconds
PAUSE = 0.01


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process that sleeps: what ranks may wait for, and a rank itself."""
    process = subprocess.Popen(["sleep", "60"])
    yield process.pid
    process.kill()
    process.wait()


@dataclass
class Trial:
    """Rank 0 of two waits for a collective with rank 1."""

    session: Session
    simulator: Simulator
    ranks: list[FakeRank]
    error: list[PhantoraError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self.run)
        self.join(self.ranks[0])
        self.began = time.monotonic()
        self.thread.start()

    def run(self) -> None:
        try:
            self.simulator.run()
        except PhantoraError as error:
            self.error.append(error)

    def join(self, rank: FakeRank) -> None:
        rank.start()
        rank.communicator(1, 2, rank.index)
        rank.collective(1, 1 << 20)
        self.session.control["waiting"][rank.index] = 1
        rank.ask("done", "DEVICE_SYNC")

    def end(self, patience: float) -> float:
        """Seconds until the simulator has ended."""
        self.thread.join(patience)
        assert not self.thread.is_alive()
        return time.monotonic() - self.began


@pytest.fixture
def trial(tmp_path: Path, engine_library: Path, sleeper: int) -> Iterator[Trial]:
    cluster = load_cluster("1x2xH100")
    session = Session.create(SessionConfig(2, 2), device_fields(cluster.gpu), {})
    log = LogWriter(tmp_path / "run.arrow", RunMetadata(), Tables())
    simulator = Simulator(
        session, log, SimulatorConfig(engine=engine_library, cluster=cluster, cost=FixedCosts(), hang_timeout=HANG)
    )
    simulator.watch(sleeper)  # as the TCPStore's process is
    made = Trial(session, simulator, [FakeRank(index, session) for index in range(2)])
    yield made
    simulator.stop()
    made.thread.join(10)
    log.close({})


def test_a_rank_may_take_longer_to_start_than_a_hang(trial: Trial) -> None:
    time.sleep(3 * HANG)
    assert trial.thread.is_alive()
    trial.join(trial.ranks[1])
    while any(rank.answer("done") is None for rank in trial.ranks):
        assert trial.thread.is_alive() and time.monotonic() - trial.began < 30
        time.sleep(PAUSE)
    for rank in trial.ranks:
        rank.exit()
    trial.end(30)
    assert not trial.error


def test_a_rank_that_never_starts_is_a_hang_in_the_end(trial: Trial) -> None:
    assert trial.end(60) > 9 * HANG
    assert "rank 1 has not started" in str(trial.error[0])


def test_a_rank_that_has_started_and_sleeps_is_a_hang(trial: Trial, sleeper: int) -> None:
    trial.session.control["pid"][1] = sleeper
    trial.ranks[1].start()
    assert trial.end(60) > HANG
    assert "rank 1 runs or sleeps outside CUDA" in str(trial.error[0])


def test_who_waits_for_room_does_without_before_it_is_a_hang(trial: Trial) -> None:
    """Rank 0's queue waits for rank 1, which waits for the bytes of what rank 0 would do next."""
    zero, one = trial.ranks
    zero.ask("room", "ROOM", depth=0)
    one.start()
    one.communicator(1, 2, 1)
    one.ask("bytes", "PAYLOAD", ticket=5)
    assert trial.end(60) < 9 * HANG
    assert zero.answer("room") == (0, 0)
    assert "rank 1 waits for the bytes" in str(trial.error[0])


def test_a_rank_that_works_between_naps_is_no_hang(trial: Trial) -> None:
    """So looks a rank on a crowded machine: asleep at many looks, though not for good."""
    program = """
import time
end = time.monotonic() + 5 * %f
while time.monotonic() < end:
    time.sleep(0.02)
    begin = time.thread_time()
    while time.thread_time() < begin + 0.01: pass
begin = time.thread_time()
while time.thread_time() < begin + %f: pass
time.sleep(60)
"""
    # The last work is far longer than what passes for sleep, so that the timeout counts from its end.
    process = subprocess.Popen([sys.executable, "-S", "-c", program % (HANG, HANG / 2)])
    try:
        trial.session.control["pid"][1] = process.pid
        trial.ranks[1].start()
        time.sleep(3 * HANG)
        assert trial.thread.is_alive()
        assert trial.end(60) > 6 * HANG
        assert "rank 1 runs or sleeps outside CUDA" in str(trial.error[0])
    finally:
        process.kill()
        process.wait()

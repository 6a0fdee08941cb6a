"""The log does not depend on the order in which the engine hears of the ranks (see
`tests/robustness/determinism.py`)."""

from __future__ import annotations

from pathlib import Path

from phantora.cost import model_for
from phantora.hardware import load_cluster
from phantora.trace.reader import open_log
from tests.support.fakeranks import Bench
from tests.support.programs import draw, played
from tests.support.schedules import Recording, log_of

SCHEDULES = 12
PROGRAMS = range(2000, 2030)
"""Programs whose log depended on the schedule in an engine of 2026-11-22: six of them (2004, 2005, 2014, ...)."""


def steps(bench: Bench) -> None:
    """Three ranks of unequal hosts: kernels on two streams, two groups, waits of the host, a send."""
    for index, rank in enumerate(bench.ranks):
        rank.communicator(1, 3, index)
        if index < 2:
            rank.communicator(2, 2, index, key=8)
        rank.stream(8)
    for step in range(4):
        for index, rank in enumerate(bench.ranks):
            rank.kernel(f"forward{index}:10000", at=rank.clock + 100 * (index + 1))
            rank.collective(1, 1 << 20, stream=8)
            rank.kernel("backward:20000", at=rank.clock + 3000)
            if index < 2:
                rank.collective(2, 1 << 22, stream=8)
                rank.transfer(("SEND", "RECV")[(index + step) % 2], 2, 1 - index, 1 << 16, stream=8)
            rank.ask("sync", "STREAM_SYNC", stream=0)
        bench.run()
        for rank in bench.ranks:
            assert rank.answer("sync")
    for rank in bench.ranks:
        rank.exit()
    bench.run()


def test_any_interleaving_of_the_ranks_gives_one_log(engine_library: Path, tmp_path: Path) -> None:
    bench = Bench.create(engine_library, 3, record=True)
    steps(bench)
    cluster = load_cluster("1x3xH100")
    recording = Recording(cluster, {rank: bench.engine.take_records(rank, True) for rank in range(3)})
    cost = model_for(cluster.gpu, tmp_path)
    path = tmp_path / "run.arrow"
    assert len({log_of(recording, seed, engine_library, cost, path) for seed in range(SCHEDULES)}) == 1
    kinds = [kind for batch in open_log(path).batches() for kind in batch["kind"].tolist()]
    assert len(kinds) > 60


def test_random_programs_give_one_log_in_any_order(engine_library: Path) -> None:
    different = []
    for seed in PROGRAMS:
        program = draw(seed, 2 + seed % 2)
        logs = [played(engine_library, program, order) for order in range(4)]
        different += [seed] * any(log != logs[0] for log in logs)
    assert not different

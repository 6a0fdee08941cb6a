"""Phases of a reinforcement-learning loop: time and idle time by role."""

from __future__ import annotations

from pathlib import Path

from phantora.trace.analysis.phases import PhaseTime, phases
from phantora.trace.reader import open_log
from tests.support.fakelog import FakeRun, Kind

GENERATOR, TRAINER = 0, 1


def _log(tmp_path: Path, annotations: list[tuple[int, int, int, str]]) -> Path:
    made = FakeRun()
    for rank, start, end, name in annotations:
        made.add(Kind.ANNOTATION, rank, start, end, name)
    made.add(Kind.KERNEL, GENERATOR, 0, 100, "generate_mask", launch=0)
    for start, end in ((100, 120), (120, 125), (130, 160), (160, 200)):
        made.add(Kind.KERNEL, TRAINER, start, end, "product", launch=start)
    made.add(Kind.COLLECTIVE, TRAINER, 125, 190, "gradients", stream=7, launch=125, ready=150)
    made.add(Kind.COLLECTIVE, TRAINER, 90, 96, "tokens", stream=7, launch=85, ready=92)
    for rank, start in (GENERATOR, 110), (TRAINER, 200):
        made.add(Kind.COLLECTIVE, rank, start, 210, "weights", stream=7, launch=start, ready=200)
    return made.write(tmp_path / "run.arrow")


def test_each_role_has_its_phases_and_its_idle_time(tmp_path: Path) -> None:
    log = _log(
        tmp_path,
        [
            (GENERATOR, 0, 100, "generate"),
            (GENERATOR, 100, 210, "sync_weights"),
            (TRAINER, 80, 95, "generate: send"),
            (TRAINER, 95, 120, "score"),
            (TRAINER, 120, 200, "train"),
            (TRAINER, 200, 210, "sync_weights"),
        ],
    )
    generator, trainer = phases(open_log(log), (GENERATOR, TRAINER), 0)
    assert (generator.name, generator.ranks, generator.time, generator.idle) == ("generate", [GENERATOR], 210, 100)
    assert (trainer.name, trainer.ranks, trainer.time, trainer.idle) == ("score + train", [TRAINER], 210, 101)
    assert {row.phase: (row.time, row.idle) for row in generator.phases} == {"sync": (110, 100), "generate": (100, 0)}
    # Of the time in which the gradients wait for their last rank, 5 ns have no other kernel.
    assert {row.phase: (row.time, row.idle) for row in trainer.phases} == {
        "generate": (96, 92),
        "score": (24, 4),
        "train": (80, 5),
        "sync": (10, 0),
    }
    assert generator.phases[0] == PhaseTime("sync", 110, 110 / 210, 100)
    (late, _) = phases(open_log(log), (GENERATOR, TRAINER), 50)
    assert late.time == 160, "without what is before the given moment"


def test_training_alone_has_no_phases(tmp_path: Path) -> None:
    """The kernel ``generate_mask`` is no annotation."""
    assert not phases(open_log(_log(tmp_path, [(TRAINER, 120, 200, "train")])), (GENERATOR, TRAINER), 0)

"""Points that estimates exclude: the closed form orders them, and those that ran give its factor."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantora.sweeps.journal import Journal
from phantora.sweeps.objective import Objective
from phantora.sweeps.plan import Point, make_plan
from phantora.sweeps.presets import load_preset, preset_path
from phantora.sweeps.result import OUT_OF_MEMORY, RAN, Result
from phantora.sweeps.runner import Listed, Runner
from phantora.sweeps.space import space_of
from phantora.sweeps.task import Shared, Task
from tests.support.sweeps import GIB, measured

pytestmark = pytest.mark.unit
SPACE = {
    "target": ["train.py"],
    "matrix": {"n": list(range(1, 11))},
    "tokens": "4096",
    "arguments": {"n": "--n"},
    "bounds": {"time": "n * 0.1", "likely_memory": "10e9 if n != 6 else 90e9"},
}


class Immediate:
    """An engine whose points take twice the estimate, with what they need."""

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.ended: list[tuple[Task, Result]] = []

    def has_room(self, task: Task) -> bool:
        return not self.ended

    def begin(self, task: Task) -> None:
        number = int(task.point.values["n"])
        self.ran.append(number)
        found = measured(2 * task.point.likely_time / 1e6, memory=60 if number != 6 else 540)
        status = OUT_OF_MEMORY if found.memory > 80 * GIB else RAN
        self.ended.append((task, Result(task.key, task.point.values, status, measured=found)))

    def finished(self) -> list[tuple[Task, Result]]:
        ended, self.ended = self.ended, []
        return ended

    def close(self) -> None: ...


def test_estimates_order_points_and_exclude_those_that_are_slower(tmp_path: Path) -> None:
    points: list[Point] = make_plan(space_of(SPACE, "estimated")).points
    engine, objective = Immediate(), Objective()
    runner = Runner(
        shared=Shared(tmp_path),
        source=Listed(points, objective),
        engine=engine,
        journal=Journal(tmp_path),
        objective=objective,
    )
    skipped = {int(entry.point.values["n"]): entry.skipped for entry in runner.run() if entry.skipped}
    assert engine.ran == [1, 2, 3, 4, 5], "the fastest first; four give the factor, one was waiting"
    assert set(skipped) == {6, 7, 8, 9, 10}
    assert "does not fit" in skipped[6] and "slower than the best" in skipped[7]


def test_the_estimates_of_presets_order_known_layouts() -> None:
    """Simulated steps of Llama 3 8B on 64 H100, in seconds."""
    known = {
        (1, 1, 1, "selective"): 1.94,
        (2, 1, 2, "none"): 2.47,
        (4, 1, 4, "none"): 3.93,
        (2, 2, 4, "selective"): 5.72,
    }
    space = load_preset(preset_path("torchtitan"), "llama3-8b").with_axes(
        {"cluster": ("8x8xH100",), "rounds": (1, 2, 4), "ac": ("none", "selective")}
    )
    found = {tuple(p.values[n] for n in ("tp", "pp", "rounds", "ac")): p.likely_time for p in make_plan(space).points}
    times = [found[each] for each in known]
    assert times == sorted(times)
    assert all(0.7 < found[each] / 1e9 / seconds < 1.1 for each, seconds in known.items())

"""Processes of a command without a GPU: whose clock they read, and what happens before what with Ray."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from phantora.rank import front_end
from phantora.rank.clock import _make_sleep
from phantora.rank.shims import ray as shim
from phantora.spec import VARIABLE, RankSpec
from tests.support.clock import Clock


@pytest.mark.parametrize(
    ("place", "script", "reported"),
    [
        ("driver.py", "import time; time.perf_counter()", True),
        ("driver.py", "print('no clock')", False),
        ("site-packages/launcher.py", "import time; time.time()", False),
        ("site-packages/ray/_private/workers/default_worker.py", "import time; time.time()", True),
    ],
    ids=["driver", "no clock", "launcher", "worker of Ray"],
)
def test_a_driver_that_reads_a_clock_is_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    place: str,
    script: str,
    reported: bool,
) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    monkeypatch.setattr("sys.argv", [str(path)])
    monkeypatch.setenv(VARIABLE, RankSpec(session="/none").to_json())
    front_end.note_clock()
    assert ("uses no GPU" in capsys.readouterr().err) == reported
    monkeypatch.setenv(VARIABLE, RankSpec(session="/none", place=0).to_json())
    front_end.note_clock()
    assert not capsys.readouterr().err


@pytest.mark.parametrize(("progress", "slept"), [(0, 2_000), (300, 0)])
def test_a_driver_sleeps_in_virtual_time_while_no_rank_goes_on(progress: int, slept: int) -> None:
    latest, reached = [100], [50]
    clock = Clock().runtime()
    clock.follows, clock.latest = (lambda: front_end.LATEST), (lambda: latest[0])
    clock.now, clock.reach = (lambda: 1_000), reached.append
    _make_sleep(clock, lambda _: latest.append(latest.pop() + progress))(2e-6)
    assert reached == [50, 1_000 + slept] if slept else reached == [50]


@pytest.fixture
def notes(tmp_path: Path) -> str:
    path = tmp_path / "tasks"
    path.touch()
    return os.fspath(path)


def test_a_task_begins_after_its_submission_and_what_it_takes(notes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim, "_POLLS", 1)
    driver, worker = shim.Journal(notes), shim.Journal(notes)
    driver.submitted("a", 100, [])
    driver.submitted("b", 120, ["a"])
    assert worker.begin("a") == 100
    worker.ended("a", 400)
    assert (worker.begin("b"), driver.end("a"), driver.end("b")) == (400, 400, 0)
    assert worker.begin("of somebody else") == 0


class _Clock(shim._Clock):
    def __init__(self) -> None:
        self.time = 0

    def now(self) -> int:
        return self.time

    def reach(self, at: int) -> None:
        self.time = max(self.time, at)


class _Reference:
    def __init__(self, task: str) -> None:
        self.task = task

    def task_id(self) -> Any:
        return SimpleNamespace(hex=lambda: self.task)


def test_a_driver_is_behind_the_results_that_it_takes(notes: str) -> None:
    journal, driver, worker = shim.Journal(notes), _Clock(), _Clock()
    driver.time, worker.time = 50, 10
    submit = shim._noting_submission(lambda self, args, kwargs: _Reference("t"), journal, driver)
    reference = submit(None, (1,), {})
    assert journal.begin("t") == 50
    journal.ended("t", 90)
    take = shim._reaching_ends(lambda given: "result", journal, driver, lambda given, _: given)
    assert (take([reference, 3]), driver.time) == ("result", 90)

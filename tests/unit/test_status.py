"""Messages about a run before it starts and while it goes on."""

from __future__ import annotations

import re
import resource
import time
from typing import Any

import pytest

from phantora.cli import status
from phantora.cli.status import Status, expected_steps, reported_by
from phantora.errors import PhantoraError
from phantora.runs import preflight as checks
from phantora.runs.preflight import preflight
from phantora.sim.config import Stats

GIB = 1 << 30


def at(steps: int, records: int = 1000) -> Stats:
    return Stats(
        virtual_ns=1_500_000_000,
        records=records,
        rows=0,
        alive=2,
        exited=0,
        optimizer_steps=steps,
        late=0,
        releases=0,
        device_peak=0,
        cpu_seconds=0.0,
        host_memory=0,
        host_pinned=0,
    )


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        (("--steps", "20"), 20),
        (("--lr", "3", "--training.steps=7"), 7),
        (("--max_steps", "5"), 5),
        (("--train-iters", "12"), 12),
        (("--iters=4",), 4),
        (("--num-steps", "9"), 9),
        (("--steps-per-log", "3"), None),
        (("--steps",), None),
        ((), None),
    ],
)
def test_the_number_of_steps_that_a_script_is_asked_for(arguments: tuple[str, ...], steps: int | None) -> None:
    assert expected_steps(arguments) == steps


def test_slow_parts_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    stats: list[Stats] = []
    reported = Status(2, stats)
    assert "importing torch" in reported.text(0) and "starting the script" in reported.text(2)
    stats.append(at(0))
    assert "1.500 s simulated" in reported.text(2)
    monkeypatch.setattr(status, "_busy_with", lambda: "compiling (nvcc)")
    later = time.monotonic() + 8
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert "compiling (nvcc) for" in reported.text(2)


def test_steps_and_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    stats = [at(1)]
    reported = Status(2, stats, ("--steps", "11"))
    reported.text(2)  # sees the first step
    clock[0], stats[0] = 110.0, at(6, 2000)
    assert "step 6 of 11, 2 of 2 ranks, 1.500 s simulated in 10 s, 10 s left" in reported.text(2)
    plain = re.sub(r"\x1b\[[\d;]*m", "", reported.bar(2, 100))
    assert "━" in plain and "step 6 of 11" in plain and "\n" not in plain and len(plain) < 100


def test_lines_come_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    line = reported_by(Status(2, [at(3)]), lines=True)
    seen: list[Any] = []
    for clock[0] in (1.0, 9.0, 11.0, 15.0, 22.0):
        seen.append(line(2, 80))
    assert [text is not None for text in seen] == [False, False, True, False, True]
    assert seen[2].startswith("phantora: step 3, 2 of 2 ranks")


def test_what_cannot_work_here_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "free_memory", lambda: 20 * GIB)
    monkeypatch.setattr(checks, "_processes", lambda: 1_000_000)
    monkeypatch.setattr(checks, "_shared_memory", lambda: 8 * GIB)
    with pytest.raises(PhantoraError, match=r"9,999 ranks .* 20\.0 GiB .* --nnodes"):
        preflight(9_999)
    assert "take about 88 GiB" in preflight(1_000) and preflight(8) == ""
    monkeypatch.setattr(checks, "_shared_memory", lambda: 1 << 20)
    assert "num_workers=0" in preflight(8)
    with monkeypatch.context() as few:
        few.setattr(resource, "getrlimit", lambda limit: (40, 40))
        with pytest.raises(PhantoraError, match="8 ranks need 48 open files, and 40 are allowed"):
            preflight(8)
        few.setattr(resource, "getrlimit", lambda limit: (20, 20))
        with pytest.raises(PhantoraError, match=r"^1 rank needs 34 open files"):
            preflight(1)
    monkeypatch.setattr(checks, "_processes", lambda: 4_000)
    with pytest.raises(PhantoraError, match="ulimit -u"):
        preflight(1_000)

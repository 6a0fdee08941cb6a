"""Outlier steps, and the reasons for them."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from phantora.trace.analysis.outlier_steps import Content, notes, recurring_waits


def content(kernels: int = 100, backward: int = 40, to_host: int = 0, forward: int = 20) -> Content:
    given = {"kernels": kernels, "backward": backward, "to_host": to_host, "forward": forward}
    return Content(**{f.name: np.array([float(given.get(f.name, 0))]) for f in fields(Content)})


def noted(*steps: tuple[float, Content]) -> dict[int, str]:
    timed = [(number, time) for number, (time, _) in enumerate(steps, 1)]
    return notes({0: timed}, {0: [own for _, own in steps]})


def test_one_steady_step_stands_for_the_run() -> None:
    """Of the steps after the first the second makes a communicator and waits, the third is as all that would follow."""
    assert noted((900, content()), (268, content()), (90, content())) == {1: "start-up", 2: "waits"}


def test_steps_that_wait_until_the_end_are_part_of_the_run() -> None:
    """Two workers of a DataLoader are ready at once, so every other step waits; a collector runs every tenth."""
    notes = {1: "start-up", 2: "waits"} | dict.fromkeys((6, 8, 10, 12), "waits")
    assert recurring_waits(notes, range(1, 13)) == ({1: "start-up"}, True)
    notes = {1: "start-up"} | dict.fromkeys((10, 20, 30), "waits")
    assert recurring_waits(notes, range(1, 31)) == (notes | dict.fromkeys((10, 20, 30), "recurring waits"), False)
    assert recurring_waits({1: "start-up", 2: "waits", 3: "waits", 4: "waits"}, range(1, 31))[0][4] == "waits"


def test_one_evaluation() -> None:
    steps = (900, content()), (90, content()), (150, content(160, forward=40))
    assert noted(*steps) == {1: "start-up", 3: "evaluation"}


def test_an_optimizer_that_inverts_its_preconditioners_evaluates_nothing() -> None:
    steps = [(950.0 if k % 10 == 9 else 100.0, content(300 if k % 10 == 9 else 100)) for k in range(30)]
    assert noted(*steps) == {1: "start-up", **dict.fromkeys((10, 20, 30), "more work")}


def test_first_runs_of_a_compiler_are_start_up() -> None:
    """Unless later steps have such work too."""
    profiled = [(900.0, content()), *[(300.0, content(200, forward=40))] * 3, *[(90.0, content())] * 6]
    assert noted(*profiled) == dict.fromkeys((1, 2, 3, 4), "start-up")
    again = [*profiled, (300.0, content(200, forward=40))]
    assert noted(*again) == {1: "start-up", **dict.fromkeys((2, 3, 4, 11), "evaluation")}


def test_one_checkpoint_among_equal_steps() -> None:
    steps = [(900.0, content()), *[(90.0, content())] * 3, (300.0, content(to_host=1 << 30))]
    assert noted(*steps) == {1: "start-up", 5: "checkpoint"}

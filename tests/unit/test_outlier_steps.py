"""Outlier steps, and the reasons for them."""

from __future__ import annotations

import numpy as np

from phantora.trace.analysis.outlier_steps import Content, notes


def content(kernels: int = 100, backward: int = 40, to_host: int = 0) -> Content:
    values = (0, kernels, backward, 0, to_host, 0)
    return Content(*(np.array([float(value)]) for value in values))


def noted(*steps: tuple[float, Content]) -> dict[int, str]:
    timed = [(number, time) for number, (time, _) in enumerate(steps, 1)]
    return notes({0: timed}, {0: [own for _, own in steps]})


def test_one_steady_step_stands_for_the_run() -> None:
    """Of the steps after the first the second makes a communicator and waits, the third is as all that would follow."""
    assert noted((900, content()), (268, content()), (90, content())) == {1: "start-up", 2: "waits"}


def test_one_evaluation() -> None:
    assert noted((900, content()), (90, content()), (150, content(160))) == {1: "start-up", 3: "evaluation"}


def test_one_checkpoint_among_equal_steps() -> None:
    steps = [(900.0, content()), *[(90.0, content())] * 3, (300.0, content(to_host=1 << 30))]
    assert noted(*steps) == {1: "start-up", 5: "checkpoint"}

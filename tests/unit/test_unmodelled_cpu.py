"""The note on CPU time that the modelled host clock does not know; test_data_loading.py has a real run."""

from __future__ import annotations

import pytest

from phantora.rank.patches.unmodelled_cpu import note, spent_and_taken, spent_and_taken_by_kernels

MS = 1_000_000


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [(900 * MS, 5 * MS)] * 2,  # the first does not count, and one is no rule
        [(0, 5 * MS)] * 9,
        [(MS // 2, 10 * MS)] * 9,  # a twentieth
        [(900 * MS, 5 * MS)] * 2 + [(0, 5 * MS)] * 9 + [(900 * MS, 5 * MS)],  # compiling, writing a checkpoint
    ],
)
def test_nothing_to_say(steps: list[tuple[int, int]]) -> None:
    assert note(*spent_and_taken(steps), stepped=True) is None


def test_a_loop_without_optimizer_has_the_same_note() -> None:
    """Forty iterations of three kernels. Start-up takes long, and such work at it does not count."""
    start = [(70 * MS, 3 * MS, 5), (MS, 200 * MS, 6)]
    loop = [(49 * MS, 80_000, 6 + 3 * i) for i in range(40)]
    spent, takes = spent_and_taken_by_kernels([*start, *loop], 126, 206 * MS + 200_000)
    assert spent / takes == pytest.approx(49 * MS / 80_000, rel=0.2)
    assert "times the simulated time on this machine's CPU" in (note(spent, takes, stepped=False) or "")
    assert note(*spent_and_taken_by_kernels([*start, *loop[:10]], 9000, 300 * MS), stepped=False) is None


@pytest.mark.parametrize(
    "steps, spent, takes",
    [
        ([(30 * MS, 10 * MS)] * 4, "30 ms", "10 ms"),
        ([(0, 10 * MS), (40 * MS, 10 * MS)] * 20, "20 ms", "10 ms"),  # two optimizers
        (([(0, 5 * MS)] * 15 + [(160 * MS, 5 * MS)]) * 10, "10 ms", "5 ms"),  # sixteen updates after each rollout
    ],
)
def test_what_steps_take(steps: list[tuple[int, int]], spent: str, takes: str) -> None:
    text = note(*spent_and_taken(steps), stepped=True)
    assert text is not None
    assert f"takes {spent} " in text and f"takes {takes} for one;" in text

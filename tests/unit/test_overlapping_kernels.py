"""Time of an operator's kernels that run next to each other."""

from __future__ import annotations

import pytest

from phantora.profile.measure import alone


@pytest.mark.parametrize(
    ("spans", "share"),
    [
        ([(0, 10), (10, 10)], 1.0),
        ([(0, 10), (15, 10)], 1.0),  # the gap is no kernel's time
        ([(0, 10), (0, 10)], 0.5),
        ([(0, 10), (5, 10)], 0.75),
        ([(0, 30), (5, 10), (20, 20)], 40 / 60),
        ([], 1.0),
    ],
)
def test_kernels_next_to_each_other_share_the_time(spans: list[tuple[int, int]], share: float) -> None:
    events = [{"ts": float(start), "dur": float(length)} for start, length in reversed(spans)]
    assert alone(events) == pytest.approx(share)

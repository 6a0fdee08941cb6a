"""Steps before the power limiters have settled are set apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from phantora.trace.analysis.settled_steps import SETTLING, Settled, settle

Steps = dict[int, tuple[int, int, float]]


def reported(steps: Steps, needed: float, settled: dict[str, Any]) -> Settled:
    log = SimpleNamespace(
        metadata=SimpleNamespace(extra={"settling_ns": needed} if needed else {}), trailer={"settled": settled}
    )
    return settle(steps, "optimizer", log)  # type: ignore[arg-type]


def after(*times: int) -> Steps:
    ends = [sum(times[: i + 1]) for i in range(len(times))]
    return {i + 2: (end - time, end, float(time)) for i, (end, time) in enumerate(zip(ends, times, strict=True))}


def by_replay(*times: int) -> dict[str, Any]:
    return {"source": "optimizer", "steps_ns": {str(i + 2): ns for i, ns in enumerate(times)}}


SKIPPED = {"skipped": "no optimizer"}


@pytest.mark.parametrize(
    ("steps", "needed", "settled", "expected"),
    [
        (after(95, 98, 100, 100), 150, by_replay(100, 100, 100, 100), Settled({2: SETTLING, 3: SETTLING})),
        (after(95, 98), 500, by_replay(100, 102), Settled({2: SETTLING}, True)),  # the last stands for the run
        (after(50, 100, 50, 100), 500, by_replay(50, 100, 50, 100), Settled({})),  # batches differ, and are settled
        (after(95, 98, 100, 100, 100), 150, SKIPPED, Settled({2: SETTLING, 3: SETTLING})),  # by the later ones
        (after(95, 98), 500, SKIPPED, Settled({}, short_ns=307.0)),
        (after(95, 98), 500, {}, Settled({})),  # power limits nothing
        (after(95, 100, 100), 500, {}, Settled({2: SETTLING})),
        (after(95, 100, 80), 500, {}, Settled({})),  # steps differ
        (after(95, 98), 0, by_replay(100, 100), Settled({})),  # a real trace
    ],
)
def test_steps_before_limiters_settle(steps: Steps, needed: float, settled: dict[str, Any], expected: Settled) -> None:
    assert reported(steps, needed, settled) == expected

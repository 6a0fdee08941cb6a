"""Time of a garbage collection that a program asks for."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from phantora.rank.patches.garbage import _rounded, timed
from phantora.wire.layout import Api
from tests.support.clock import Clock


def test_a_full_collection_takes_time_by_its_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, per = Clock(), {Api.GC_IMPORTED: 100, Api.GC_OBJECT: 10}
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 311_296)
    monkeypatch.setattr(gc, "get_objects", lambda: range(65_536))
    collect = timed(lambda generation: generation, replace(clock.runtime(), times_ns=lambda api, n: per[api] * n))
    assert collect(1) == 1 and clock.time == 0, "young objects alone"
    assert collect() == 2 and clock.time == 311_296 * 100 + 65_536 * 10


def test_counts_that_differ_by_a_few_objects_are_equal() -> None:
    assert _rounded(320_007) == _rounded(320_900) == 311_296
    assert _rounded(0) == 0 and _rounded(7) == 7

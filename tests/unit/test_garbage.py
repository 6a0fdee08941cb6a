"""Time of full garbage collections: those that a program asks for, and those that Python's counters begin."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from phantora.errors import PhantoraError
from phantora.rank.patches import garbage
from phantora.rank.patches.garbage import Collector, _rounded, has_full_collections
from phantora.runs.prepare import prepare
from phantora.spec import COUNTED, RunSpec
from phantora.wire.layout import Api
from tests.support.clock import Clock

PER = {Api.GC_IMPORTED: 100, Api.GC_OBJECT: 10}


@contextmanager
def objects(monkeypatch: pytest.MonkeyPatch, *, own: int, young: int = 0) -> Iterator[None]:
    counts = {None: own, 0: young, 1: 0}
    with monkeypatch.context() as patched:
        patched.setattr(gc, "get_objects", lambda generation=None: range(counts[generation]))
        yield


def collector(clock: Clock, imported: int, counted: bool = False) -> Collector:
    return Collector(replace(clock.runtime(), times_ns=lambda api, n: PER[api] * n), counted, imported)


@pytest.mark.parametrize("name", ["freeze", "unfreeze"])
def test_a_full_collection_takes_time_by_its_objects(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    clock = Clock()
    own = collector(clock, 311_296)
    collect, freeze = own.collect(lambda generation: generation), getattr(own, name)(lambda: None)
    with objects(monkeypatch, own=65_536):
        assert collect(1) == 1 and clock.time == 0, "young objects alone"
        assert collect() == 2 and clock.time == 311_296 * 100 + 65_536 * 10
        freeze()
        assert collect() == 2 and clock.time == 311_296 * 100 + 2 * 65_536 * 10


def test_objects_that_are_frozen_before_the_program_begins_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, moves = Clock(), False
    runtime = replace(clock.runtime(), times_ns=lambda api, n: PER[api] * n, moves_clock=lambda: moves)
    own = Collector(runtime, False, 16_384)
    collect, freeze = own.collect(lambda generation: generation), own.freeze(lambda: None)
    with objects(monkeypatch, own=16_384):
        freeze()
    moves = True
    with objects(monkeypatch, own=0):
        assert collect() == 2 and clock.time == 32_768 * 100


@pytest.mark.parametrize(("counted", "full"), [(True, [22, 44]), (False, [])])
def test_new_objects_of_a_quarter_of_the_old_ones_begin_one(
    monkeypatch: pytest.MonkeyPatch, counted: bool, full: list[int]
) -> None:
    clock, found = Clock(), []
    own = collector(clock, 16_384, counted)
    with objects(monkeypatch, own=0, young=300):
        for number in range(1, 50):
            before = clock.time
            for generation in (0, 1):
                own.notice("start", {"generation": generation, "collected": 0})
                own.notice("stop", {"generation": generation, "collected": 104})  # 21 times 196 are 4,116
            found += [number] if clock.time > before else []
    assert found == full


def test_counts_that_differ_by_a_few_objects_are_equal() -> None:
    assert _rounded(320_007) == _rounded(320_900) == 311_296
    assert _rounded(0) == 0 and _rounded(7) == 7


def test_one_collector_of_python_is_incremental() -> None:
    versions = [(3, 10, 13), (3, 13, 9), (3, 14, 0), (3, 14, 4), (3, 14, 5), (3, 15, 0)]
    assert list(map(has_full_collections, versions)) == [True, True, False, False, True, True]


def test_counted_collections_are_refused_where_there_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    spec = RunSpec(str(script))
    monkeypatch.setattr(garbage, "has_full_collections", lambda _: False)
    with pytest.raises(PhantoraError, match="--garbage counted: the collector of Python"):
        prepare(replace(spec, ranks=replace(spec.ranks, garbage=COUNTED)))

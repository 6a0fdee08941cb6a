"""Cost of a DataLoader's batches, without a DataLoader; tests/integration/test_data_loading.py has real ones."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._utils import ExceptionWrapper

from phantora import python_probe
from phantora.errors import PhantoraError
from phantora.hardware import load_host
from phantora.python_probe import python
from phantora.rank.patches.loading import Cost, Fetched, Loading, Pace, Timed, Workers, parse
from phantora.runs.data import python_ns, slowdown
from phantora.trace.analysis.data import DataTime, data_of, data_time
from phantora.trace.analysis.iterations import Mark
from phantora.trace.analysis.loader import Loader
from phantora.trace.analysis.prefetched import PREFETCHED, prefetched
from phantora.trace.analysis.steps import Steps
from phantora.trace.analysis.uncertainty import Bar
from phantora.wire.layout import Api
from tests.support.clock import Clock

STEPS = Steps(source="optimizer", of_rank={})
MS = 1_000_000


@pytest.mark.parametrize(
    "text, cost",
    [
        ("free", Cost()),
        ("measured", Cost(factor=1.0, paced=True)),
        ("measured:0.5", Cost(factor=0.5)),
        ("auto", Cost(factor=1.0, decides=True, paced=True)),
        ("12ms", Cost(ns=12 * MS)),
        ("0.5s", Cost(ns=500 * MS)),
        ("800us", Cost(ns=800_000)),
    ],
)
def test_costs(text: str, cost: Cost) -> None:
    assert parse(text) == cost


@pytest.mark.parametrize("text", ["", "12", "measured:", "measured:-1", "measured:nan", "0ms", "free:2", "1parsec"])
def test_what_is_no_cost_is_refused(text: str) -> None:
    with pytest.raises(PhantoraError, match="--data-loading"):
        parse(text)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 9)), max_size=40))
def test_a_worker_makes_one_batch_after_the_other(batches: list[tuple[int, int, int]]) -> None:
    workers, asked = Workers(), 0
    made: dict[int, list[tuple[int, int, int]]] = {}
    for worker, pause, cost in batches:
        asked += pause
        workers.asked[worker].append(asked)
        made.setdefault(worker, []).append((asked, cost, 0))
    for worker, mine in made.items():
        free = 0
        for when, cost, _ in mine:
            ready = workers.delivers(worker, cost)
            assert ready == max(free, when) + cost
            free = ready


class Iterator:
    """As much of torch's iterator as is changed: two workers, asked in turn, two batches ahead."""

    def __init__(self) -> None:
        self._num_workers, self._prefetch_factor, self._dataset = 2, 2, "text"
        self._reset()

    def _reset(self) -> None:
        self._send_idx, self._task_info = 0, dict[Any, Any]()
        for _ in range(4):
            self._try_put_index()

    def _try_put_index(self) -> None:
        self._task_info[self._send_idx] = (self._send_idx % 2,)
        self._send_idx += 1

    def _shutdown_workers(self) -> None:
        pass

    def _process_data(self, data: object, worker: int) -> object:
        self._try_put_index()
        return data


def _changed(cost: Cost, clock: Clock) -> tuple[Loading, type]:
    loading = Loading(cost, clock.runtime(), Pace(0))
    iterator = type("Iterator", (Iterator,), {})
    module = SimpleNamespace(__name__="torch.utils.data.dataloader", _MultiProcessingDataLoaderIter=iterator)
    loading.meet(module)  # type: ignore[arg-type]
    return loading, iterator


@pytest.mark.parametrize("cost", [Cost(ns=10 * MS), Cost(factor=2.0)])
def test_batches_come_as_fast_as_all_workers_make_them(cost: Cost) -> None:
    clock = Clock()
    loading, iterator = _changed(cost, clock)
    this = iterator()
    times = []
    for number in range(8):
        assert this._process_data(Fetched(number, 5 * MS, 5 * MS), number % 2) == number
        times.append(clock.time // MS)
        clock.advance(MS)  # the step
    assert times == [10, 11, 20, 21, 30, 31, 40, 41]
    assert not loading.notes()


@pytest.mark.parametrize("cpu, last", [(20, 121), (1, 11)])
def test_batches_count_where_the_script_waits_for_them(cpu: int, last: int) -> None:
    """Two workers make twelve batches, and a step takes 1 ms. Six batches of 20 ms need 120 ms, of 1 ms nothing."""
    clock = Clock()
    loading, iterator = _changed(Cost(factor=1.0, decides=True), clock)
    this = iterator()
    for number in range(12):
        this._process_data(Fetched(number, cpu * MS, cpu * MS), number % 2)
        clock.advance(MS if number < 11 else 0)
    assert clock.time == last * MS and bool(loading.notes()) == (cpu == 20)


@pytest.mark.parametrize("text", ["auto", "measured", "measured:9"])
def test_waits_of_workers_are_as_long_on_any_host(text: str) -> None:
    """Two workers wait 20 ms for each of twelve batches, and a step takes 1 ms."""
    clock = Clock()
    loading, iterator = _changed(parse(text), clock)
    this = iterator()
    for number in range(12):
        this._process_data(Fetched(number, 1, 1, 20 * MS), number % 2)
        clock.advance(MS if number < 11 else 0)
    assert clock.time // MS == 121
    assert all("and 20 ms of waits" in note for note in loading.notes())


def test_a_wait_is_what_is_no_work() -> None:
    timed = Timed()
    time.sleep(0.05)
    assert sum(timed.end()) >= 50 * MS
    assert timed.end()[1] >= 45 * MS
    timed = Timed()
    sum(range(1000))  # no wait, however long the machine takes for it
    assert timed.end()[1] < 5 * MS


def test_an_epoch_begins_anew() -> None:
    clock = Clock()
    _, iterator = _changed(Cost(ns=10 * MS), clock)
    this = iterator()
    this._process_data(Fetched(0, 1, 1), 0)
    clock.advance(100 * MS)
    this._reset()
    this._process_data(Fetched(0, 1, 1), 0)
    assert clock.time == 120 * MS


@pytest.mark.parametrize("step, last", [(20, 1), (2000, 0)])
def test_batches_count_where_epochs_wait_for_their_first_ones(step: int, last: int) -> None:
    """Two workers make batches in time, but each epoch of four begins 10 ms late."""
    clock = Clock()
    loading, iterator = _changed(Cost(factor=1.0, decides=True), clock)
    for _ in range(2):
        this = iterator()
        for number in range(4):
            this._process_data(Fetched(number, 10 * MS, 10 * MS), number % 2)
            clock.advance(step * MS)
    assert clock.time == (8 * step + 10 * last) * MS and len(loading.notes()) == last


def test_the_script_makes_a_batch_on_one_thread() -> None:
    fetcher = type("Fetcher", (), {"dataset": "text", "fetch": lambda self, index: torch.get_num_threads()})
    module = SimpleNamespace(
        __name__="torch.utils.data._utils.fetch",
        _MapDatasetFetcher=fetcher,
        _IterableDatasetFetcher=type("Other", (fetcher,), {}),
    )
    Loading(Cost(), Clock().runtime(), Pace(0)).meet(module)  # type: ignore[arg-type]
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert fetcher().fetch(0) == 1 and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_an_iterator_starts_its_workers_once() -> None:
    clock = Clock()
    runtime = replace(clock.runtime(), times_ns=lambda cost, times: 30 * MS * times * (cost == Api.WORKER_START))
    module = SimpleNamespace(__name__="torch.utils.data.dataloader", _MultiProcessingDataLoaderIter=Iterator)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_try_put_index", "_process_data", "_reset", "_shutdown_workers"):
            patch.setattr(Iterator, name, getattr(Iterator, name))
        Loading(Cost(), runtime, Pace(0)).meet(module)  # type: ignore[arg-type]
        this = Iterator()
        assert clock.time == 60 * MS
        this._reset()  # persistent workers
        assert clock.time == 60 * MS


def test_batches_ahead_take_memory_of_the_host() -> None:
    clock = Clock()
    _, iterator = _changed(Cost(), clock)
    this = iterator()
    for number in range(3):
        this._process_data(Fetched({"x": [torch.zeros(10), (torch.zeros(5), 1)]}, 1, 1), number % 2)
    assert clock.held == 4 * 60, "two workers, two batches each"
    this._reset()
    this._process_data(Fetched([torch.zeros(15)], 1, 1), 0)
    assert clock.held == 4 * 60
    this._shutdown_workers()
    assert clock.held == 0


def test_workers_that_cannot_be_measured_are_refused() -> None:
    _, iterator = _changed(Cost(factor=1.0), Clock())
    with pytest.raises(PhantoraError, match="not forked"):
        iterator()._process_data("batch", 0)


@pytest.mark.parametrize("cost", [Cost(factor=1.0), Cost(ns=MS)])
def test_what_a_worker_raised_is_passed_on(cost: Cost) -> None:
    _, iterator = _changed(cost, Clock())
    raised = ExceptionWrapper((ValueError, ValueError("bad sample"), None))  # type: ignore[no-untyped-call]
    assert iterator()._process_data(raised, 0) is raised


@pytest.mark.parametrize("cpu, noted", [(5 * MS, True), (1 * MS, False)])
def test_a_run_that_would_wait_says_so(cpu: int, noted: bool) -> None:
    clock = Clock()
    loading, iterator = _changed(Cost(), clock)
    this = iterator()
    for number in range(6):
        this._process_data(Fetched(number, cpu, cpu), number % 2)
        clock.advance(MS)
    assert clock.time == 6 * MS  # nothing is counted
    notes = loading.notes()
    assert bool(notes) is noted
    if noted:
        assert "one of 2 workers takes 5 ms" in notes[0] and "every 1 ms" in notes[0] and "every 2.5 ms" in notes[0]


def test_data_that_do_not_count_make_a_step_longer() -> None:
    assert slowdown((0, 0, 0)) == 1.0
    assert slowdown((5 * 10**9, -1, 10**9)) == 5, "workers make them"
    assert slowdown((5 * 10**9, 10**9, 2 * 10**9)) == 3, "the script does"
    assert slowdown((1, -1, 10**9)) == 1.0
    assert slowdown((5 * 10**9, -1, 10**9), 1.5) == 7.5, "on a slower host"
    bar = Bar(0.1, 0.2, "gemm, measured")
    assert data_time({"data_slowdown": 1.15}, 1e6, bar, STEPS) == DataTime(0.0, bar)
    assert data_time({"data_slowdown": 2.0}, 1e6, bar, STEPS) == DataTime(0.0, Bar(0.1, 1.0, "data"))
    found = data_time({"data_fastest": 2.0, "data_step": 4.0, "data_slowdown": 6.0}, 1e6, bar, STEPS)
    assert found == DataTime(3e6, Bar(0.5, 0.5, "data"))
    other = {"data_step": 4.0, "data_slowdown": 6.0, "data_rank": 3}
    assert data_time(other, 1e6, bar, STEPS) == DataTime(0.0, bar), "the steps are those of other ranks"
    assert data_time(other, 1e6, bar, replace(STEPS, of_rank={3: []})).ns == 3e6
    replayed = data_of({"data_fastest": 2.0, "data_step": 4.0, "data_slowdown": 6.0}, 1e6, 0.5)  # half of the host time
    assert data_time(replayed, 0.5e6, bar, STEPS) == DataTime(1.5e6, Bar(0.5, 0.5, "data"))


def test_a_run_that_ends_before_it_waits_has_the_time_of_its_batches() -> None:
    loader = {"batch": 80e6, "used": 2e6, "workers": 8, "starts": 1}
    trailer = {"data_step": 1.0, "loader": loader, "data_hosts": (0.5, 1.0, 1.5)}
    bar = Bar(0.1, 0.2, "gemm, measured")
    assert data_time(trailer, 2e6, bar, STEPS) == DataTime(8e6, Bar(0.5, 0.5, "data"))
    assert data_time(trailer, 2e6, bar, replace(STEPS, waiting=True)) == DataTime(0.0, bar), "its steps have the waits"
    assert data_time(trailer | {"loader": loader | {"workers": 0}}, 2e6, bar, STEPS) == DataTime(0.0, bar)


def test_steps_stand_for_the_run_from_one_wait_for_workers_to_another() -> None:
    """Two workers take 40 ms for a batch; steps of 2 ms find 4 batches ready, then one of two steps waits."""
    waits = (100, 0, 0, 0, 0, 20, 0, 36, 0, 36, 0)
    marks, steps, now = [], [], 0
    for number, wait in enumerate(waits, 1):
        marks.append(Mark(now, now + wait * MS, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0))
        steps.append((number, now, now + (wait + 2) * MS - 1))
        now += (wait + 2) * MS
    loader = Loader(batch=40 * MS, used=2 * MS, workers=2, starts=1)
    found = prefetched(loader, {0: steps}, {0: marks})
    assert found == dict.fromkeys((2, 3, 4, 5, 6, 11), PREFETCHED)
    assert prefetched(loader, {0: steps[:7]}, {0: marks}) is None, "one wait tells no round"
    assert prefetched(replace(loader, workers=40), {0: steps}, {0: marks}) is None


def test_measured_batches_take_the_time_of_the_simulated_host() -> None:
    assert python_ns(load_host("default")) == load_host("default").probe_ns["python"]
    assert parse("measured").of(3, 5) == 5 and parse("measured:2").of(3, 5) == 6
    pace, found = Pace(20_000), []
    for _ in range(20):
        before = time.thread_time_ns()
        for _ in range(100):
            python()
        found.append(pace.scaled(time.thread_time_ns() - before))  # as long as 100 calls, at any pace
    assert statistics.median(found) == pytest.approx(100 * 20_000, rel=0.4)
    assert Pace(0).scaled(7) == 7


def test_a_process_is_timed_when_it_is_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two calls after a pause take 60 us, the others 20 us, as on the simulated host."""
    clock, calls = [0], [0]

    def call() -> None:
        calls[0] += 1
        clock[0] += 60_000 if calls[0] <= 2 else 20_000

    monkeypatch.setattr(python_probe, "python", call)
    monkeypatch.setattr(time, "thread_time_ns", lambda: clock[0])
    assert Pace(20_000).scaled(1_000_000) == 1_000_000


def test_every_epoch_has_a_loader_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, times, facts = Clock(), [], []
    runtime = replace(
        clock.runtime(), data=lambda *found: times.append(found), loader=lambda *found: facts.append(found)
    )
    loading = Loading(Cost(), runtime, Pace(0))
    for _ in range(4):
        loading._made_here(SimpleNamespace(dataset="images"), clock.time, 7 * MS, 7 * MS)
        clock.advance(MS)
    assert "the script takes 7 ms" in loading.notes()[0]
    loading.facts()
    assert times == [(7 * MS, 0, MS)] and facts == [(7 * MS, MS, 0, 0)]


def test_a_loader_without_workers_is_given_one() -> None:
    """torch refuses prefetch_factor with num_workers=0."""
    assert (
        Loader(batch=2 * MS, used=3 * MS, workers=0, starts=1).remedy()
        == "num_workers=1 or more makes batches meanwhile"
    )
    assert Loader(batch=2 * MS, used=3 * MS, workers=2, starts=1).remedy() == "a larger prefetch_factor"

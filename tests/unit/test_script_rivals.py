"""Background threads of a script: their share of time, and the times of what they put into a queue."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from phantora.rank.patches.loading import Pace
from phantora.rank.patches.rivals import Rivals
from phantora.rank.patches.thread_queues import Queues
from phantora.rank.patches.thread_times import ScriptThread
from tests.support.clock import Clock

MS = 1_000_000


@dataclass(eq=False, kw_only=True)
class Worker(ScriptThread):
    """A thread with a given CPU time."""

    place: str = "worker"
    clock: int = 0
    at: int = 0
    cpu: int = 0

    def cpu_ns(self) -> int:
        return self.cpu


@pytest.mark.parametrize(
    "follows, sleeps, cpu, share",
    [
        (False, 0, 20, 1.0),  # a loop, however long a step takes here
        (False, 60, 20, 0.25),  # a loop that sleeps for 60 of 80 ms
        (True, 0, 20, 0.2),  # work of 20 ms for every 100 ms of the clock
        (True, 0, 5, 0.05),  # next to nothing
    ],
)
def test_a_thread_takes_its_share_of_the_lock(follows: bool, sleeps: int, cpu: int, share: float) -> None:
    found: list[tuple[int, int]] = []
    rivals = Rivals(runtime=replace(Clock().runtime(), rivals=lambda *had: found.append(had)), pace_probe=Pace(0))
    worker = Worker(follows=follows)
    rivals._polls = True
    rivals.watch(worker)
    rivals._locks.extend([5 * MS] * 3 + [8 * MS])  # the last one waited for a core, too
    for _ in range(20):
        worker.cpu += cpu * MS
        worker.slept += sleeps * MS
        rivals.poll((20 + sleeps) * MS, 100 * MS)
    counts = share > 0.1
    assert found[-1] == pytest.approx((5 * MS * counts, share * 1e6), rel=0.01) and rivals.counts == counts


@pytest.fixture
def changed() -> Iterator[Callable[[Any, Any], None]]:
    before = queue.Queue.put, queue.Queue.get

    def change(runtime: Any, rivals: Any, worker: ScriptThread) -> None:
        main = threading.current_thread()
        Queues(runtime, rivals, lambda: None if threading.current_thread() is main else worker).install()

    yield change  # type: ignore[misc]
    queue.Queue.put, queue.Queue.get = before  # type: ignore[method-assign]


@pytest.mark.parametrize("counts, last", [(True, 60), (False, 30)])
def test_the_loop_waits_for_what_a_thread_makes(changed: Any, counts: bool, last: int) -> None:
    """Six items of 10 ms of CPU each; the loop takes 5 ms for one."""
    clock, main = Clock(), threading.current_thread()
    runtime = replace(clock.runtime(), moves_clock=lambda: threading.current_thread() is main)
    rivals = Rivals(runtime=runtime, pace_probe=Pace(0), watches=True, counts=counts)
    worker = Worker()
    changed(runtime, rivals, worker)
    items: queue.Queue[int] = queue.Queue(maxsize=2)

    def make() -> None:
        for item in range(6):
            worker.cpu += 10 * MS
            items.put(item)

    thread = threading.Thread(target=make)
    thread.start()
    for item in range(6):
        assert items.get() == item
        clock.advance(5 * MS)
    thread.join()
    assert clock.time == (last + 5 * counts) * MS


def test_a_thread_goes_on_when_its_queue_has_room(changed: Any) -> None:
    """The loop takes 50 ms for an item, so the thread makes the last of four while it works at the second."""
    clock, main = Clock(), threading.current_thread()
    runtime = replace(clock.runtime(), moves_clock=lambda: threading.current_thread() is main)
    worker = Worker()
    changed(runtime, Rivals(runtime=runtime, pace_probe=Pace(0), watches=True, counts=True), worker)
    items: queue.Queue[int] = queue.Queue(maxsize=1)

    def make() -> None:
        for item in range(4):
            worker.cpu += 10 * MS
            items.put(item)

    thread = threading.Thread(target=make)
    thread.start()
    while items.qsize() == 0:
        time.sleep(0.001)
    for _ in range(4):
        items.get()
        clock.advance(50 * MS)
    thread.join()
    assert clock.time == 210 * MS and worker.at == 110 * MS

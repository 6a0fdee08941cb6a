"""Which threads of the script compete with the training loop for Python's lock, and how long they keep it.

A thread of its own polls every few milliseconds, in real time. It takes a share of virtual time for each thread:

- A thread that never waits for others, such as a loop, works all the time but its own sleeps, however long the
  simulated step takes on this machine.
- A thread that takes from a queue, or puts into one, works for as long as what it did since the last poll takes on the
  simulated host, over what the rank's clock has moved.

How long a thread keeps the lock is measured: this thread sleeps without the lock, and takes the time until it has it
again. A loop in Python keeps it for the switch interval, a thread in NumPy or in an operator for next to nothing.
"""

from __future__ import annotations

import _thread
import sys
from collections import deque
from dataclasses import dataclass, field

from phantora.rank.clock import Runtime, real_time, watch_lock
from phantora.rank.patches.loading import Pace
from phantora.rank.patches.thread_times import ScriptThread

_POLL_NS = 20_000_000
_KEPT = 0.95  # weight of a poll at the next one: 0.4 s
_LEAST_NS = 50_000_000  # real time of polls, and CPU time of threads, from which on there is a share
_SHARE = 0.1  # of virtual time, from which on threads count
_LEAST_LOCK_NS = 100_000  # a thread that has the lock for less delays nothing that takes milliseconds
_FREE = 0.1  # CPU time over real time of a thread that never waits for others but for the lock
_MOST = 0.95  # of a thread that waits for others: what it does for one item is done some time
_LOCKS = 32  # measured times of the lock whose mean counts
_DELAYED = 16  # the longest, and one more of 16, are dropped: the thread with the lock may have waited for a core


def monotonic_ns() -> int:
    """This machine's clock."""
    return real_time().monotonic_ns()  # type: ignore[no-any-return]


@dataclass(kw_only=True)
class Seen:
    """A thread, at the polls so far; each counts less with every later one."""

    thread: ScriptThread
    cpu_mark: int
    slept_mark: int = 0
    delayed_mark: int = 0
    cpu: float = 0.0
    slept: float = 0.0
    real: float = 0.0
    virtual: float = 0.0
    total: int = 0

    def poll(self, real: int, virtual: int, delayed: int) -> None:
        """The last poll was these ns ago; `delayed`: ns for which the thread has waited for a core so far."""
        now, slept = self.thread.cpu_ns(), self.thread.slept
        self.cpu = self.cpu * _KEPT + now - self.cpu_mark
        self.slept = self.slept * _KEPT + slept - self.slept_mark
        self.real = self.real * _KEPT + real - (delayed - self.delayed_mark)
        self.virtual = self.virtual * _KEPT + virtual
        self.cpu_mark, self.slept_mark, self.delayed_mark, self.total = now, slept, delayed, now

    def share(self, pace: float) -> float:
        """The share of virtual time that the thread works; `pace` as in :class:`ScriptThread`."""
        if self.real < _LEAST_NS or self.total < _LEAST_NS:
            return 0.0
        work = self.cpu * pace
        if not self.thread.follows and self.cpu > _FREE * (self.real - self.slept):
            return work / (work + self.slept)
        return min(_MOST, work / self.virtual) if self.virtual else _MOST


@dataclass(kw_only=True)
class Rivals:
    """The threads that compete for Python's lock."""

    runtime: Runtime
    pace_probe: Pace
    watches: bool = False
    """There is or was one."""
    counts: bool = False
    """They have taken much of the time once."""
    locks: bool = False
    """They have kept the lock for a time that counts."""
    pace: float = 1.0
    """Time on the simulated host over that on this machine."""
    _seen: list[Seen] = field(default_factory=list)
    _locks: deque[int] = field(default_factory=lambda: deque(maxlen=_LOCKS))
    _polls: bool = False

    def watch(self, thread: ScriptThread) -> None:
        """Takes the time of `thread` from now on."""
        self._seen = [*self._seen, Seen(thread=thread, cpu_mark=thread.cpu_ns())]
        self.watches = True
        if not self._polls:
            self._polls = True
            watch_lock()
            _thread.start_new_thread(self._poll_on, ())

    def drop(self, thread: ScriptThread) -> None:
        """`thread` ends."""
        self._seen = [one for one in self._seen if one.thread is not thread]

    def _poll_on(self) -> None:
        now, clock = monotonic_ns(), self.runtime.now()
        while self._seen:
            self._measure_lock()
            before, clock_before = now, clock
            now, clock = monotonic_ns(), self.runtime.now()
            self.poll(now - before, clock - clock_before)
        self._polls = False
        self.runtime.rivals(0, 0)

    def poll(self, real: int, virtual: int) -> None:
        """The last poll was these ns ago, in real and in virtual time."""
        self.pace = self.pace_probe.scaled(1_000_000) * 1e-6
        for one in self._seen:
            one.poll(real, virtual, self.runtime.delayed([one.thread.number])[1])
        share = min(1.0, sum(one.share(self.pace) for one in self._seen))
        locks = sorted(self._locks)[: -1 - len(self._locks) // _DELAYED]
        lock = sum(locks) / len(locks) if len(locks) >= 3 else 0
        self.counts = self.counts or share > _SHARE
        keeps = share > _SHARE and lock > _LEAST_LOCK_NS
        self.locks = self.locks or keeps
        self.runtime.rivals(int(lock) if keeps else 0, int(share * 1e6))

    def _measure_lock(self) -> None:
        """Sleeps without the lock, and takes the time until it is back, if the threads work then. Waits for a core of
        this machine are no time of the lock."""
        clocks = [one.thread.clock for one in self._seen]
        threads = [one.thread.number for one in self._seen]
        found = self.runtime.poll(_POLL_NS, clocks, threads)
        waited = monotonic_ns() - found.ended
        if found.busy:
            waited -= self.runtime.delayed(threads)[0] - found.delayed[0]
            self._locks.append(max(0, min(waited, len(threads) * int(sys.getswitchinterval() * 1e9))))

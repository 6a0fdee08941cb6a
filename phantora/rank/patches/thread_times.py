"""Time of a background thread of the script."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass


@dataclass(eq=False, kw_only=True)
class ScriptThread:
    """A thread that the script has started. Its own virtual time moves on with its CPU time and its sleeps, and to the
    time at which what it waits for is there."""

    place: str
    """Function and file that the thread runs."""
    clock: int
    """Number of its clock of CPU time."""
    at: int
    """Virtual time of the thread, ns."""
    number: int = 0
    """As of ``gettid``."""
    follows: bool = False
    """It has taken something from another thread, or given something to one, and may have waited for that."""
    slept: int = 0
    """Virtual time of its sleeps, ns."""
    passed: int = 0
    """CPU time that `at` has, ns of this machine."""
    latest: int = 0
    """CPU time when it was read last, ns of this machine."""

    def cpu_ns(self) -> int:
        """CPU time on this machine so far, or until it ended."""
        with suppress(OSError):  # it has just ended
            self.latest = time.clock_gettime_ns(self.clock)
        return self.latest

    def sleep(self, ns: int, now: int) -> None:
        """It sleeps for this time; the rank's clock is at `now`. Sleeps may be polls, which how fast others are in real
        time decides, so they move a thread no further than the rank."""
        self.slept += ns
        self.at = max(self.at, min(self.at + ns, now))

    def now(self, pace: float) -> int:
        """Virtual time of the thread; `pace`: time on the simulated host over that on this machine."""
        cpu = self.cpu_ns()
        self.at += int((cpu - self.passed) * pace)
        self.passed = cpu
        return self.at

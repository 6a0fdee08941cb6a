"""Background threads of the script (``--script-threads``; docs/data-loading.md).

On a real host they compete with the training loop for Python's lock, and the loop waits for what they put into a queue.
Their work is real, so its time is measured: CPU time on this machine, scaled to the simulated host as that of batches.
It differs from run to run, so it counts only for threads that take much of the time (`SHARE`).
``patches/rivals.py`` finds these and their share of Python's lock, ``patches/thread_queues.py`` the times of what they
put into queues.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phantora.rank import clock
from phantora.rank.clock import Runtime
from phantora.rank.messages import report_at_end, tell
from phantora.rank.patch import Patch, Rank, When
from phantora.rank.patches.loading import Pace
from phantora.rank.patches.rivals import Rivals
from phantora.rank.patches.thread_queues import Queues
from phantora.rank.patches.thread_times import ScriptThread
from phantora.rank.user_code import is_users
from phantora.spec import FREE, rank_spec

LEAST_S = 0.1
SHARE = 0.1
"""CPU time of a thread, in seconds and over that of the main thread, that is worth a note."""


def place_of(thread: threading.Thread) -> str | None:
    """Function and file that `thread` runs; None for threads of packages."""
    work: Any = getattr(thread, "_target", None) or type(thread).run
    while isinstance(work, functools.partial):
        work = work.func
    code = getattr(getattr(work, "__func__", work), "__code__", None)
    if code is None or not is_users(code.co_filename):
        return None
    return f"{code.co_name} of {Path(code.co_filename).name}"


@dataclass
class Threads:
    """The script's threads."""

    runtime: Runtime
    rivals: Rivals | None = None
    """None: they take no virtual time."""

    def __post_init__(self) -> None:
        self._ended: defaultdict[str, float] = defaultdict(float)
        self._running: dict[int, ScriptThread] = {}

    def timed(self, bootstrap: Any) -> Any:
        """``Thread._bootstrap_inner``, whose CPU time counts."""

        @functools.wraps(bootstrap)
        def inner(thread: threading.Thread) -> None:
            place = place_of(thread)
            if place is None:
                bootstrap(thread)
                return
            number = threading.get_ident()
            one = ScriptThread(
                place=place,
                clock=time.pthread_getcpuclockid(number),
                at=self.runtime.now(),
                number=threading.get_native_id(),
            )
            self._running[number] = one
            if self.rivals is not None and self.runtime.is_virtual() and not self.runtime.moves_clock():
                self.rivals.watch(one)
            try:
                bootstrap(thread)
            finally:
                if self.rivals is not None:
                    self.rivals.drop(one)
                del self._running[number]
                if not self.runtime.moves_clock():
                    self._ended[place] += time.thread_time()

        return inner

    def current(self) -> ScriptThread | None:
        """The calling thread, if the script has started it."""
        return self._running.get(threading.get_ident())

    def slept(self, seconds: float) -> None:
        """The calling thread sleeps."""
        if (one := self.current()) is not None:
            one.sleep(int(seconds * 1e9), self.runtime.now())

    def waiting(self, wait: Any) -> Any:
        """``threading.Condition.wait``: without an answer within its timeout it is a sleep."""

        @functools.wraps(wait)
        def waited(condition: Any, timeout: float | None = None) -> bool:
            found: bool = wait(condition, timeout)
            if (one := self.current()) is not None and not one.follows:
                if found or timeout is None:
                    one.follows = True
                else:
                    self.slept(timeout)
            return found

        return waited

    def note(self, main_s: float) -> str | None:
        """Note on the thread with most CPU time, next to `main_s` seconds of the main thread."""
        spent = dict(self._ended)
        for one in list(self._running.values()):
            spent[one.place] = spent.get(one.place, 0.0) + one.cpu_ns() * 1e-9
        if not spent or max(spent.values()) < max(LEAST_S, SHARE * main_s):
            return None
        place = max(spent, key=lambda one: spent[one])
        takes = f"a thread of the script ({place}) takes {spent[place]:.3g} s of this machine's CPU, the main thread "
        if self.rivals is not None and (self.rivals.counts or self.rivals.locks):
            what = ["the main thread waits for Python's lock"] * self.rivals.locks
            what += ["what it puts into a queue is there when it can have made it"] * self.rivals.counts
            return (
                f"{takes}{main_s:.3g} s: {', and '.join(what)}. These times differ from run to run; --script-threads "
                "free leaves them out"
            )
        return f"{takes}{main_s:.3g} s. It takes no virtual time"


def install(rank: Rank) -> None:
    """Gives threads their time, and prints the note when the process ends, in the first rank."""
    spec, kind = rank_spec(), threading.Thread
    runtime = Runtime.of(rank.runtime)
    threads = Threads(runtime)
    if spec.script_threads != FREE:
        threads.rivals = Rivals(runtime=runtime, pace_probe=Pace(spec.python_ns))
        Queues(runtime, threads.rivals, threads.current).install()
        clock.sleep_watchers.append(threads.slept)
        condition: Any = threading.Condition
        condition.wait = threads.waiting(condition.wait)
    kind._bootstrap_inner = threads.timed(kind._bootstrap_inner)  # type: ignore[attr-defined]

    def report() -> None:
        if (text := threads.note(time.thread_time())) is not None:
            tell(text)

    report_at_end(rank.runtime, report)


PATCH = Patch("threads", When.IN_RANK, install)

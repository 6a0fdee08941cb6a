"""A note on threads of the script, which take no virtual time.

On a real host they compete with the training loop for Python's lock, cores and memory. How far such a thread is when
the loop launches a kernel depends on this machine, so its work moves no clock.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from phantora.rank.clock import Runtime
from phantora.rank.messages import report_at_end, tell
from phantora.rank.patch import Patch, Rank, When
from phantora.rank.user_code import is_users

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


class Threads:
    """CPU time of the script's threads on this machine."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._ended: defaultdict[str, float] = defaultdict(float)
        self._running: dict[int, tuple[str, int]] = {}

    def timed(self, bootstrap: Any) -> Any:
        """``Thread._bootstrap_inner``, whose CPU time counts."""

        @functools.wraps(bootstrap)
        def inner(thread: threading.Thread) -> None:
            place = place_of(thread)
            if place is None:
                bootstrap(thread)
                return
            number = threading.get_ident()
            self._running[number] = place, time.pthread_getcpuclockid(number)
            try:
                bootstrap(thread)
            finally:
                del self._running[number]
                if not self._runtime.moves_clock():
                    self._ended[place] += time.thread_time()

        return inner

    def note(self, main_s: float) -> str | None:
        """Note on the thread with most CPU time, next to `main_s` seconds of the main thread."""
        spent = dict(self._ended)
        for running, clock in list(self._running.values()):
            spent[running] = spent.get(running, 0.0) + time.clock_gettime(clock)
        if not spent or max(spent.values()) < max(LEAST_S, SHARE * main_s):
            return None
        place = max(spent, key=lambda one: spent[one])
        return (
            f"a thread of the script ({place}) takes {spent[place]:.3g} s of this machine's CPU, the main thread "
            f"{main_s:.3g} s. It takes no virtual time: on a real host an operator of the main thread may wait for "
            "Python's lock, up to 5 ms next to a thread that never waits"
        )


def install(rank: Rank) -> None:
    """Prints the note when the process ends, in the first rank."""
    threads, kind = Threads(Runtime.of(rank.runtime)), threading.Thread
    kind._bootstrap_inner = threads.timed(kind._bootstrap_inner)  # type: ignore[attr-defined]

    def report() -> None:
        if (text := threads.note(time.thread_time())) is not None:
            tell(text)

    report_at_end(rank.runtime, report)


PATCH = Patch("threads", When.IN_RANK, install)

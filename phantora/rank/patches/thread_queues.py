"""Virtual times of what the script's threads pass on by a ``queue.Queue``.

The training loop waits until the thread that has made an item could have done so, if such threads count. The thread
begins with its next item when there is room in the queue.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from phantora.rank.clock import Runtime
from phantora.rank.patches.rivals import Rivals
from phantora.rank.patches.thread_times import ScriptThread

_TIMES = "_phantora_times"  # kept with a queue


@dataclass
class Times:
    """Virtual times of a queue, ns. The order of two threads that put at once may be another one."""

    made: deque[int] = field(default_factory=deque)
    """Times at which the items in the queue were put."""
    puts: int = 0
    room: deque[int] = field(default_factory=deque)
    """When items were taken out of a queue with a limit, since a thread has put as many."""


@dataclass
class Queues:
    """The queues of a rank."""

    runtime: Runtime
    rivals: Rivals
    current: Callable[[], ScriptThread | None]

    def install(self) -> None:
        """Changes ``queue.Queue``."""
        kind: Any = queue.Queue
        kind.put, kind.get = self._put(kind.put), self._get(kind.get)

    def _now(self, thread: ScriptThread | None) -> int | None:
        """Virtual time of the calling thread; None if it is none of the script's."""
        if thread is not None and not self.runtime.moves_clock():
            thread.follows = True
            return thread.now(self.rivals.pace)
        return self.runtime.now() if self.runtime.moves_clock() else None

    def _put(self, real: Any) -> Any:
        def put(queue: Any, item: Any, block: bool = True, timeout: float | None = None) -> None:
            if not self.rivals.watches or not self.runtime.is_virtual():
                real(queue, item, block, timeout)
                return
            thread = self.current()
            now = self._now(thread)
            times: Times = vars(queue).setdefault(_TIMES, Times())
            times.made.append(now or 0)
            try:
                real(queue, item, block, timeout)
            except BaseException:
                times.made.pop()
                raise
            times.puts += 1
            if 0 < queue.maxsize < times.puts and times.room:
                room = times.room.popleft()
                if thread is not None:
                    thread.at = max(thread.at, room)

        return put

    def _get(self, real: Any) -> Any:
        def get(queue: Any, block: bool = True, timeout: float | None = None) -> Any:
            item = real(queue, block, timeout)
            times: Times | None = vars(queue).get(_TIMES)
            if times is None or not times.made:
                return item
            made, thread = times.made.popleft(), self.current()
            now = self._now(thread)
            if now is None:
                return item
            if thread is not None:
                now = thread.at = max(now, made)
            elif made > now and self.rivals.counts:
                self.runtime.advance(made - now)
                now = made
            if queue.maxsize > 0:
                times.room.append(now)
            return item

        return get

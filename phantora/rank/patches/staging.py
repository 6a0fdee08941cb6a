"""Copies of checkpoints to the host's memory in a thread (``DefaultStager`` with ``use_async_staging``).

The thread allocates and pins memory, and launches copies. That has a time of its own (``stub/rank/clock/apart.c``): the
call returns at its begin, and the rank's own work waits for the locks of the driver and of Python meanwhile.
"""

from __future__ import annotations

import functools
from concurrent.futures import Future, wait
from typing import Any

from phantora.rank.clock import Runtime
from phantora.rank.importhook import excluded

_POLL_S = 0.001
_SLEEP_S = 0.2


def await_awake(future: Future[Any], runtime: Runtime) -> None:
    """Waits until a thread of this rank is done, in real time alone. The simulator takes a rank that sleeps for one
    that waits for other ranks or GPUs, and moves its clock on. It does so if a thread waits for an answer."""

    def poll() -> None:
        while wait([future], _SLEEP_S if runtime.asking() else _POLL_S).not_done:
            pass

    excluded(poll)  # how often is chance


class Staging:
    """The copies of one rank."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._took = 0
        self.ends = 0
        """End of the last copy, ns."""

    def meet(self, module: Any) -> None:
        """Changes ``torch.distributed.checkpoint.staging``."""
        stager = module.DefaultStager
        stager._stage, stager.stage = self._copied(stager._stage), self._begun(stager.stage)

    def _copied(self, copy: Any) -> Any:
        """`copy`, which a thread of the stager calls, or the rank itself."""

        @functools.wraps(copy)
        def copied(*args: Any, **kwargs: Any) -> Any:
            self._runtime.apart_begin(True)
            try:
                return copy(*args, **kwargs)
            finally:
                self._took = self._runtime.apart_end()

        return copied

    def _begun(self, stage: Any) -> Any:
        """`stage`, which begins a copy. When its thread is done on this machine is chance, and must not show."""

        @functools.wraps(stage)
        def begun(*args: Any, **kwargs: Any) -> Any:
            staged = stage(*args, **kwargs)
            if isinstance(staged, Future) and self._runtime.is_virtual() and self._runtime.moves_clock():
                await_awake(staged, self._runtime)
                now = self._runtime.now()
                self._runtime.apart_from(now, self._took)
                self.ends = now + self._took
            return staged

        return begun

"""The note on threads of a script."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from phantora.rank.patches import threads
from phantora.rank.patches.threads import Threads
from tests.support.clock import Clock


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def after(seen: Threads, works: list[Callable[[], None]]) -> str | None:
    """The note after threads have done `works`."""
    for work in works:
        thread = threading.Thread(target=work)
        runner = threading.Thread(target=functools.partial(seen.timed(lambda one: one._target()), thread))
        runner.start()
        runner.join()
    return seen.note(1.0)


def test_threads_that_work_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "is_users", lambda name: name == __file__)
    runtime = replace(Clock().runtime(), moves_clock=lambda: False)
    note = after(Threads(runtime), [functools.partial(spin, 0.08), functools.partial(spin, 0.08)])
    assert note and "(spin of test_script_threads.py) takes 0.16" in note and "main thread 1 s" in note
    assert after(Threads(runtime), [functools.partial(spin, 0.02)]) is None, "little"
    assert after(Threads(runtime), [functools.partial(time.sleep, 0.2)]) is None, "no code of the script"
    assert after(Threads(Clock().runtime()), [functools.partial(spin, 0.2)]) is None, "it moves the clock"

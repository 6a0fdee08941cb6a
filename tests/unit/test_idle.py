"""Who works: a thread that works for a rank whose own thread waits keeps it awake; other threads do not."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from phantora.sim import idle
from phantora.wire.names import ASIDE

PROGRAM = """
import _thread, sys
from phantora.launch import process, tuning
def spin():
    print("spins", flush=True)
    while True: pass
if sys.argv[1] == "aside": tuning.aside(spin)
else:
    lock = _thread.allocate_lock(); lock.acquire()
    _thread.start_new_thread(spin, ()); lock.acquire()
"""


@pytest.mark.parametrize(("how", "awake"), [("aside", True), ("helper", False)])
def test_threads_that_count(how: str, awake: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM, how], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == "spins\n"
            time.sleep(0.05)  # its main thread has come to wait
            detector = idle.IdleDetector()
            looks = []
            for _ in range(5):
                looks.append(detector.asleep(child.pid, 0.02))
                time.sleep(0.02)
            assert looks[-1] is not awake
            assert not looks[0], "one look proves nothing"
        finally:
            child.kill()
    assert idle.snapshot(child.pid) is None


def test_names_of_threads_are_short() -> None:
    assert len(ASIDE) <= 15

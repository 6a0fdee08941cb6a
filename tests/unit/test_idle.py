"""Threads that count as work: one that works for a rank whose own thread waits keeps it awake; other threads do not."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from phantora.sim import idle
from phantora.wire.names import ASIDE

PROGRAM = """
import _thread, sys
from phantora.rank.patches import tuning
def spin():
    print("spins", flush=True)
    while True: pass
if sys.argv[1] == "aside": tuning.excluded(spin)
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
            assert detector.other_threads_work([child.pid]), "it spins"
        finally:
            child.kill()
    assert idle.snapshot(child.pid) is None


ASKS = """
import _thread, ctypes, sys
print("begins", flush=True)
if sys.argv[1] == "keeps":  # usleep with the interpreter's lock
    _thread.start_new_thread(ctypes.PyDLL(None).usleep, (10_000_000,))
while True: pass
"""


@pytest.mark.parametrize("how", ["keeps", "works"])
def test_a_thread_that_asks_for_the_interpreter_does_not_work(how: str) -> None:
    with subprocess.Popen([sys.executable, "-c", ASKS, how], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == "begins\n"
            time.sleep(0.1)
            detector, asleep, kept = idle.IdleDetector(), [], []
            for _ in range(25):
                kept.append(detector.asleep(child.pid, 0.02, kept=True))
                time.sleep(0.02)
            detector.restart()
            for _ in range(10):
                asleep.append(detector.asleep(child.pid, 0.02))
                time.sleep(0.02)
            assert any(kept) is (how == "keeps")
            assert not any(asleep), "it wakes again and again"
        finally:
            child.kill()


def test_a_store_that_is_asked_all_the_time_hides_no_sleepers() -> None:
    """Looks of large jobs lie further apart than the questions of their watchdogs."""
    asked = "import time\nprint('asked', flush=True)\nwhile True: time.sleep(0.03)"
    slept = "import time\nprint('sleeps', flush=True)\ntime.sleep(60)"
    children = [subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) for text in (asked, slept)]
    try:
        for child in children:
            assert child.stdout is not None and child.stdout.readline()
        store, rank = (child.pid for child in children)
        detector, found = idle.IdleDetector(), []
        for _ in range(10):
            found.append(detector.all_asleep([rank], [store], 0.004))
            time.sleep(0.1)
        assert any(found) and not detector.all_asleep([rank], [store], 1.0), "it must be quiet for as long as is asked"
        assert not detector.other_threads_work([store, rank]), "questions are no work"
    finally:
        for child in children:
            child.kill()
            child.communicate()


def test_names_of_threads_are_short() -> None:
    assert len(ASIDE) <= 15

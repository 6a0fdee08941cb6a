"""A hang in words, and the stacks behind it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from phantora.sim.hang import describe, working
from phantora.wire import stacks
from phantora.wire.stacks import Place, place_in

ROOT = Path(__file__).parents[2]
LIBRARY = sysconfig.get_path("purelib") + "/torch/distributed"
STACK = f"""Current thread 0x00007f0000000000 (most recent call first):
  File "{LIBRARY}/distributed_c10d.py", line 3004 in all_reduce
  File "{LIBRARY}/c10d_logger.py", line 81 in wrapper
  File "/home/user/model.py", line 12 in forward
  File "/home/user/train.py", line 40 in <module>
"""


@pytest.mark.parametrize("library", [LIBRARY, "/linked/venv/lib/python3.12/site-packages/torch/distributed"])
def test_the_innermost_frame_of_the_user(library: str) -> None:
    assert place_in(STACK.replace(LIBRARY, library)) == Place("/home/user/model.py", 12, "forward", "all_reduce")
    assert str(place_in(STACK)) == "/home/user/model.py:12 in forward, calling all_reduce"
    assert place_in("") is None


def test_equal_ranks_are_one() -> None:
    lines = [f"  rank {rank} waits in all_reduce of 8 float32; not there: rank 3." for rank in range(3)]
    lines.append("  rank 3 runs or sleeps outside CUDA")
    there = Place("train.py", 7, "<module>", "synchronize")
    reported = describe("\n".join(lines), {0: there, 1: there, 2: there, 3: Place("train.py", 9, "main", "wait")})
    assert reported.splitlines() == [
        "deadlock: every member of a group must call the same collectives in the same order",
        "  rank 0 waits in all_reduce of 8 float32; not there: rank 3 (same: rank 1-2)",
        "      at train.py:7, calling synchronize",
        "  rank 3 runs or sleeps outside CUDA",
        "      at train.py:9 in main, calling wait",
    ]


def test_remedies() -> None:
    def remedy(state: str, call: str = "") -> str:
        return describe(f"  rank 0 {state}\n", {0: Place("a.py", 1, "f", call)}).splitlines()[0]

    sends = "each send needs a receive"
    assert sends in remedy("waits to send 8 bytes in group (ranks 0-1), its peer has not called it")
    assert sends in remedy("waits in the creation of a communicator of 2 ranks", "recv")
    assert "rank ended" in remedy("has exited with status 0")
    assert "store" in remedy("runs or sleeps outside CUDA")


def test_working_names_a_few() -> None:
    places = {rank: Place("a.py", 1, "f", "") for rank in range(9)}
    text = working(30.2, places, {9: 77})
    assert text.startswith("for 30 s nothing has been launched: rank 9 is stopped; `kill -CONT 77`")
    assert text.count("a.py:1 in f") == 3
    assert working(30, {}, {}).endswith("no rank's place is known")


def test_a_blocked_process_answers_and_another_is_left_alone() -> None:
    program = "import threading, sys\nfrom phantora.wire import stacks\n{}\nprint(flush=True)\n"
    program += "def stand():\n    threading.Lock().acquire() and threading.Event().wait()\nstand()\n"
    ranks = {}
    for rank, call in enumerate(("stacks.register()", "pass")):
        command = [sys.executable, "-c", program.format(call)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        ranks[rank] = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    try:
        for process in ranks.values():
            assert process.stdout is not None
            process.stdout.readline()
        for _ in range(2):  # the second stack comes behind the first
            found = stacks.collect({rank: process.pid for rank, process in ranks.items()})
            assert set(found) == {0} and found[0].file != ""
        assert ranks[1].poll() is None
    finally:
        for process in ranks.values():
            process.kill()
            process.communicate()

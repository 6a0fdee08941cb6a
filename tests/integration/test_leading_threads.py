"""A program that trains in a thread of its own takes the same host time as in the main one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import runs

PROGRAM = """
import json, threading, time
import torch
took = {}
def train(name):
    x = torch.zeros(8, device="cuda")
    for _ in range(3):  # the last one counts: its code is in the caches
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(100): x = x + 1
        took[name] = time.perf_counter() - began
thread = threading.Thread(target=train, args=("thread",)); thread.start(); thread.join()
train("main")
print(json.dumps(took))
"""


def test_the_first_thread_that_launches_moves_the_clock(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    took = runs.trace(tmp_path, "train.py").report()
    assert took["thread"] == pytest.approx(took["main"], rel=0.01) and took["main"] > 3e-4

"""Resources of a command on this machine: wall time, CPU time of all its processes, and its memory.

Memory is the largest sum of proportional set sizes (PSS) seen over the command and all its descendants: pages that
several processes share count once. Looking takes CPU of its own, which is not counted: at most a twentieth of a core.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from phantora.launch.daemon import VARIABLE
from phantora.process import proportional_bytes
from phantora.run_process import PHANTORA

SECONDS_BETWEEN = 1.0  # or twenty times what a look took


@dataclass(frozen=True)
class Cost:
    wall: float
    cpu: float
    """User and system seconds."""
    memory: int
    output: str
    """stdout and stderr."""

    def __str__(self) -> str:
        return f"{self.cpu:7.1f} s CPU {self.wall:7.1f} s wall {self.memory / 2**30:6.2f} GiB"


def children(pid: int) -> list[int]:
    """Pids of its child processes."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    except OSError:
        pass
    return found


def descendants(pid: int) -> list[int]:
    """Pids of all processes below `pid`, and itself."""
    return [pid, *(one for child in children(pid) for one in descendants(child))]


def phantora_trace(*arguments: str) -> list[str]:
    return [*PHANTORA, "trace", "--no-summary", *arguments]


def measure(command: Sequence[str], directory: str, environment: Mapping[str, str] | None = None) -> Cost:
    """Runs the command to its end; its failure ends this program with what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, VARIABLE: "0", **(environment or {})},  # a daemon's CPU would not be counted
    )
    peak = 0
    stop = threading.Event()

    def watch() -> None:
        nonlocal peak
        pause = SECONDS_BETWEEN
        while not stop.wait(pause):
            looked = time.thread_time()
            peak = max(peak, sum(proportional_bytes(pid) for pid in descendants(process.pid)))
            pause = max(SECONDS_BETWEEN, 20 * (time.thread_time() - looked))

    watcher = threading.Thread(target=watch)
    watcher.start()
    output, _ = process.communicate()
    wall = time.monotonic() - begin
    stop.set()
    watcher.join()
    if process.returncode:
        sys.exit(output)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall, cpu, peak, output)

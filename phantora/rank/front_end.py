"""Processes of a command that use no GPU, such as the driver of workers, and the clock that they read.

Such a process has the latest clock of all ranks. With Ray it has the clock of the results that it has taken
(``rank/shims/ray.py``). Its own work takes no time.
"""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path

from phantora.rank.messages import tell
from phantora.spec import rank_spec

REAL, LATEST, REACHED = range(3)  # enum ph_front of stub/rank/rank.h
_CLOCKS = re.compile(r"\b(perf_counter|monotonic|time\.time|time_ns)\b")
_WORKER = ("ray", "_private", "workers", "default_worker.py")

_follows = False


def follow(how: int) -> None:
    """Gives this process the clock `how`, until it becomes a rank."""
    global _follows
    ctypes.CDLL(None).ph_follow(how)
    _follows = True


def note_clock() -> None:
    """Prints a note at the end of a process that uses no GPU, if its script reads a clock."""
    if rank_spec().place >= 0 or not reads_clock():
        return
    virtual, real = "it has the clock of its workers, and its own work takes no time", "its times are not simulated"
    tell(f"{Path(sys.argv[0]).name} uses no GPU: {virtual if _follows else real}")


def is_installed() -> bool:
    """True if the script of this process is installed. Launchers and servers wait by real time, except Ray's
    workers."""
    script = Path(sys.argv[0])
    if script.parts[-len(_WORKER) :] == _WORKER:
        return False
    return bool({"site-packages", "dist-packages"} & set(script.parts)) or script.parent == Path(sys.executable).parent


def reads_clock() -> bool:
    """True if a script of the user contains the name of a clock."""
    try:
        return not is_installed() and _CLOCKS.search(Path(sys.argv[0]).read_text(encoding="utf-8")) is not None
    except (OSError, UnicodeDecodeError):
        return False

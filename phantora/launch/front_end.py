"""Processes of a command that hold no GPU, such as the driver of workers: their clock is this machine's."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from phantora.launch.messages import tell
from phantora.spec import rank_spec

_CLOCKS = re.compile(r"\b(perf_counter|monotonic|time\.time|time_ns)\b")


def note_clock() -> None:
    """Prints a note at the end of a process that holds no GPU, if its script reads a clock."""
    script = Path(sys.argv[0])
    if rank_spec().place >= 0 or not reads_clock(script):
        return
    tell(f"{script.name} holds no GPU: times that it measures are this machine's, not simulated")


def reads_clock(script: Path) -> bool:
    """Is it a user's script that reads a clock? Launchers, which are installed, also wait by it."""
    if {"site-packages", "dist-packages"} & set(script.parts) or script.parent == Path(sys.executable).parent:
        return False
    try:
        return _CLOCKS.search(script.read_text(encoding="utf-8")) is not None
    except (OSError, UnicodeDecodeError):
        return False

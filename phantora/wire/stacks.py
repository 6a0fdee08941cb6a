"""Positions of ranks in their scripts: the Python stack of a process, read from outside while it is blocked.

A rank has `faulthandler` write the stack of its main thread into a memory file of its own whenever it gets `SIGNAL`.
The handler takes no lock of the interpreter, so a rank answers from within a call of NCCL or CUDA, too.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import sysconfig
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import phantora

SIGNAL = signal.SIGRTMIN + 12
_FILE = "phantora-stack"
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_QUIET_S = 0.02  # a stack is whole when its file has not grown for so long
_ANSWER_S = 0.5
_WRAPPERS = frozenset({"wrapper", "inner", "_fn", "decorate_context", "_wrapped_call_impl", "_call_impl", "__call__"})
"""Functions of torch that only pass a call on."""


@dataclass(frozen=True)
class Place:
    """The line of the script at which a rank stands, and what it called there."""

    file: str
    line: int
    function: str
    call: str

    def __str__(self) -> str:
        path = Path(self.file)
        with suppress(ValueError):
            path = path.relative_to(Path.cwd())
        within = "" if self.function == "<module>" else f" in {self.function}"
        return f"{path}:{self.line}{within}" + (f", calling {self.call}" if self.call else "")


def register() -> None:
    """Lets this process be asked for its stack."""
    faulthandler.register(SIGNAL, os.memfd_create(_FILE), all_threads=False)


def collect(pids: Mapping[int, int]) -> dict[int, Place]:
    """The places of the ranks of `pids` (rank to process); without those that do not answer."""
    files = {rank: path for rank, pid in pids.items() if (path := _file_of(pid)) is not None}
    before = {rank: _size(path) for rank, path in files.items()}
    for rank in files:
        with suppress(ProcessLookupError):
            os.kill(pids[rank], SIGNAL)
    _wait(files, before)
    found: dict[int, Place] = {}
    for rank, path in files.items():
        with suppress(OSError), open(path, "rb") as file:
            file.seek(before[rank])
            place = place_in(file.read().decode("ascii", "replace"))
            if place is not None:
                found[rank] = place
    return found


def place_in(stack: str) -> Place | None:
    """The innermost frame of the user's own code in a stack as `faulthandler` writes it, the most recent call first."""
    frames = [(file, int(line), function) for file, line, function in _FRAME.findall(stack)]
    own = next((i for i, (file, _, _) in enumerate(frames) if not _is_library(file)), None)
    if own is None:
        return Place(*frames[0], "") if frames else None
    calls = [function for _, _, function in frames[:own] if function not in _WRAPPERS]
    return Place(*frames[own], calls[-1] if calls else "")


def _is_library(file: str) -> bool:
    return file.startswith(("<", *_LIBRARIES)) or any(name in file for name in _PACKAGES)


_PACKAGES = ("/site-packages/", "/dist-packages/")  # of this Python, of the user, of any that PYTHONPATH names
_LIBRARIES = tuple(
    {
        name + os.sep
        for path in (*sysconfig.get_paths().values(), str(Path(phantora.__file__).parent))
        if path not in (sys.prefix, sys.base_prefix, sysconfig.get_path("data"))
        for name in (path, str(Path(path).resolve()))  # frames name a file as it was found, through a link or not
    }
)


def _file_of(pid: int) -> str | None:
    """The file of a living process that answers `SIGNAL`; one that does not would die of it."""
    try:
        with open(f"/proc/{pid}/status") as status:
            caught = next(line for line in status if line.startswith("SigCgt:"))
        if not int(caught.split()[1], 16) >> (SIGNAL - 1) & 1:
            return None
        for fd in os.listdir(f"/proc/{pid}/fd"):
            if os.readlink(f"/proc/{pid}/fd/{fd}").startswith(f"/memfd:{_FILE}"):
                return f"/proc/{pid}/fd/{fd}"
    except OSError:
        pass
    return None


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _wait(files: Mapping[int, str], before: Mapping[int, int]) -> None:
    sizes, deadline = dict(before), time.monotonic() + _ANSWER_S
    while time.monotonic() < deadline:
        time.sleep(_QUIET_S)
        now = {rank: _size(path) for rank, path in files.items()}
        if now == sizes and all(now[rank] > before[rank] for rank in files):
            return
        sizes = now

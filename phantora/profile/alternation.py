"""Processes that take turns, so that all meet the same machine."""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

PATIENCE_S = 120.0
_ALONE = -1
_PAUSE_S = 0.001  # they may share their cores


class Turns:
    """Role 0 of two has turns 0, 2, 4, ..., role 1 of four 1, 5, 9, .... They share a file of :func:`new_turns`."""

    def __init__(self, path: str, role: int, roles: int = 2) -> None:
        with open(path, "r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 8)
        self._due, self._roles = role, roles

    def wait(self) -> None:
        """Until it is this process's turn. Raises TimeoutError when another has had its own for too long."""
        begin = time.monotonic()
        while (now := struct.unpack("q", self._shared[:8])[0]) != self._due and now != _ALONE:
            if time.monotonic() - begin > PATIENCE_S:
                raise TimeoutError("another process does not go on")
            time.sleep(_PAUSE_S)

    def done(self) -> None:
        """The next may go on."""
        if struct.unpack("q", self._shared[:8])[0] != _ALONE:
            self._shared[:8] = struct.pack("q", self._due + 1)
        self._due += self._roles


def new_turns(path: Path) -> None:
    """Makes the file that the processes share."""
    path.write_bytes(struct.pack("q", 0))


def go_on_alone(path: Path) -> None:
    """There is no other process: who waits shall go on, and wait no more."""
    with open(path, "r+b") as file:
        file.write(struct.pack("q", _ALONE))

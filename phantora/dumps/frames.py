"""Lines of stacks in torch's dumps and snapshots."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BETWEEN = re.compile(r"-packages[/\\](?:torch|triton)[/\\]|[/\\]phantora[/\\](?:rank|launch)[/\\]|^<")
_LIBRARY = re.compile(r"[/\\](?:site-packages|dist-packages|python3\.\d+|phantora[/\\](?:rank|launch))[/\\]|^<")


@dataclass(frozen=True)
class Frame:
    """A line of a stack."""

    file: str
    line: int
    function: str

    @property
    def python(self) -> bool:
        """True for Python code; stacks may have lines of C++ as well."""
        return self.file.endswith(".py")

    @property
    def library(self) -> bool:
        """True for code of an installed package."""
        return _LIBRARY.search(self.file) is not None

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


def frames_of(value: Any) -> tuple[Frame, ...]:
    """Reads a list of frames, innermost first. Raises what a damaged one raises."""
    return tuple(
        Frame(str(one.get("filename", "")), int(one.get("line", 0)), str(one.get("name", ""))) for one in value
    )


def own_line(frames: Sequence[Frame]) -> Frame | None:
    """The innermost Python line of the user's own code, else of any Python code; None without one."""
    python = [frame for frame in frames if frame.python]
    return next((frame for frame in python if not frame.library), python[0] if python else None)


def program_line(frames: Sequence[Frame]) -> Frame | None:
    """The innermost Python line outside torch and Triton, as logs of simulated runs have it; None without one."""
    return next((frame for frame in frames if frame.python and not _BETWEEN.search(frame.file)), None)

"""A launch of a Triton kernel: its grid, and its arguments with their memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np


class UnknownIntegers(Exception):
    """Integers in memory that a kernel computed from unknown values."""


@dataclass(frozen=True)
class Memory:
    """A tensor among a launch's arguments."""

    address: int
    bytes: int
    """Bytes of its elements."""
    span: int
    """Bytes from its first to its last one."""
    values: Callable[[], np.ndarray[Any, Any]] | None = None
    """Bytes in memory order, where integers shall be read. Raises UnknownIntegers."""


@dataclass(frozen=True)
class Descriptor:
    """A tensor descriptor made by the host."""

    memory: Memory
    shape: tuple[int, ...]
    strides: tuple[int, ...]


Argument = Memory | Descriptor | int | float | bool | None


@dataclass(frozen=True)
class Launch:
    """A launch as it is made: `arguments` are those that the IR's function has, in order."""

    grid: tuple[int, int, int]
    arguments: tuple[Argument, ...]
    warps: int
    _: KW_ONLY
    stages: int
    shared: int = 0
    registers: int = 0
    spills: int = 0
    read: Callable[[int, int], np.ndarray[Any, Any] | None] | None = None
    """Bytes of device memory at an address that the kernel itself loads (a table of pointers); None if unknown."""

"""A change of a rank to Python, torch or a library, as a record; `phantora/rank/patches` has their list."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phantora.stubs.build import StubSet


class When(enum.Enum):
    """The moment at which a patch is installed."""

    BEFORE_TORCH = enum.auto()
    """The stubs are loaded, torch is not imported. In a fork server: once for all ranks."""
    AFTER_TORCH = enum.auto()
    """The operator tracer is installed, the run's :class:`RankSpec` is known. In a fork server: once for all ranks."""
    IN_RANK = enum.auto()
    """In the rank's own process, before its script runs."""


@dataclass(frozen=True)
class Rank:
    """A process with the stubs, which is a rank or may become one: what a patch is installed with."""

    stubs: StubSet
    runtime: ctypes.CDLL
    """The loaded library of ``stub/rank``."""
    served_port: str | None = None
    """Address of the TCPStore that the run serves in a process of its own; None: there is none, or no rank yet."""
    frozen: int | None = None
    """Objects that the garbage collector does not go through: to count them takes 35 ms. None: not counted yet."""

    @property
    def tracer(self) -> Path:
        """Path of the operator tracer."""
        return self.stubs.tracer

    def library(self, name: str) -> Path:
        """Path of the stub of a library, such as ``libcudart``."""
        return next(path for path in self.stubs.libraries if path.name.startswith(f"{name}.so"))


@dataclass(frozen=True)
class Patch:
    """One change. `install` applies it at once, or registers it for the import of the module that it changes."""

    name: str
    when: When
    install: Callable[[Rank], None]

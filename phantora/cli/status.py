"""Progress of a run: a bar on a terminal, in CI a line every ten seconds."""

from __future__ import annotations

import io
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table

if TYPE_CHECKING:
    from phantora.sim.config import Stats

LINE_SECONDS = 10.0
_QUIET_SECONDS = 3.0  # without a record of any rank: they are not at their GPUs
# How scripts get their number of steps.
_STEPS = re.compile(
    r"--?(?:(?:training|train|trainer)[._-])?(?:max[_-]|num[_-]|total[_-])?(?:train[_-])?(?:steps|iters|iterations)"
)
_COMPILERS = {"cc1plus", "cc1", "gcc", "g++", "nvcc", "ptxas", "ninja"}


def expected_steps(arguments: Sequence[str]) -> int | None:
    """Number of steps that the script's arguments ask for (``--steps 20``, ``--training.steps=20``); None if they do
    not."""
    for i, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if _STEPS.fullmatch(flag):
            text = value if equals else arguments[i + 1] if i + 1 < len(arguments) else ""
            if text.isdigit() and int(text):
                return int(text)
    return None


class Status:
    """Progress of a running simulation. `stats` contains the newest; `arguments` are the script's."""

    def __init__(self, world_size: int, stats: Sequence[Stats], arguments: Sequence[str] = ()) -> None:
        self._world, self._stats, self._steps = world_size, stats, expected_steps(arguments)
        self._begin = self._received = time.monotonic()
        self._records = 0
        self._first: tuple[float, int] | None = None
        """Time of the first observed step, and the number of steps then."""

    def _parts(self, alive: int) -> list[str]:
        now, wall = time.monotonic(), time.monotonic() - self._begin
        if not self._stats or not self._stats[-1].records:
            doing = "starting the script" if alive else "importing torch and what the script imports"
            return [doing, f"{wall:.0f} s"]
        reported = self._stats[-1]
        if reported.records != self._records:
            self._records, self._received = reported.records, now
        if reported.optimizer_steps and self._first is None:
            self._first = now, reported.optimizer_steps
        seconds = reported.virtual_ns * 1e-9
        of = f" of {self._steps}" if self._steps and reported.optimizer_steps <= self._steps else ""
        parts = [f"step {reported.optimizer_steps}{of}"] if reported.optimizer_steps else []
        parts += [f"{alive} of {self._world} ranks", f"{seconds:.3f} s simulated in {wall:.0f} s"]
        left = self.seconds_left(now)
        if left is not None:
            parts.append(f"{left:.0f} s left")
        if now - self._received > _QUIET_SECONDS:
            parts.append(f"{_busy_with()} for {now - self._received:.0f} s")
        return parts

    def seconds_left(self, now: float) -> float | None:
        """Estimate by the steps since the first. None if their number is unknown or wrong, or none has passed."""
        if not self._steps or self._first is None or self._stats[-1].optimizer_steps > self._steps:
            return None
        began, first = self._first
        done = self._stats[-1].optimizer_steps - first
        return (now - began) / done * max(0, self._steps - first - done) if done > 0 else None

    def text(self, alive: int) -> str:
        """One line without colours."""
        return "phantora: " + ", ".join(self._parts(alive))

    def bar(self, alive: int, width: int) -> str:
        """One line for a terminal of `width` columns, with its colours."""
        done = self._stats[-1].optimizer_steps if self._stats else 0
        out = io.StringIO()
        console = Console(file=out, width=max(20, width - 1), force_terminal=True, legacy_windows=False)
        grid = Table.grid(padding=(0, 1), expand=False)
        grid.add_column(width=20)
        grid.add_column(no_wrap=True, overflow="ellipsis")
        total = float(self._steps) if self._steps else None
        pulse = ProgressBar(total=total, completed=min(done, total or 0), width=20, pulse=total is None)
        grid.add_row(pulse, f"[dim]{', '.join(self._parts(alive))}[/dim]")
        console.print(grid, end="")
        return out.getvalue().rstrip("\n")


def _busy_with() -> str:
    """Activity of ranks outside of their GPUs, as their processes show it."""
    from phantora.process import descendants

    names = set()
    for pid in descendants(os.getpid()):
        try:
            with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
                names.add(file.read().strip())
        except OSError:
            continue
    found = sorted(names & _COMPILERS)
    return f"compiling ({found[0]})" if found else "in Python (importing, compiling, loading data)"


def reported_by(status: Status, lines: bool) -> Callable[[int, int], str | None]:
    """A function of the number of living ranks and the terminal's width. It returns the line to show: with `lines` one
    every ten seconds, else always."""
    last = [time.monotonic()]

    def line(alive: int, width: int) -> str | None:
        if not lines:
            return status.bar(alive, width)
        if time.monotonic() - last[0] < LINE_SECONDS:
            return None
        last[0] = time.monotonic()
        return status.text(alive)

    return line


def follow(arguments: Sequence[str]) -> Callable[[int, list[Stats]], Callable[[int, int], str | None] | None]:
    """Progress of a run whose script has these arguments: a bar on a terminal, or lines in CI, which sets the variable
    CI."""

    def line(ranks: int, stats: list[Stats]) -> Callable[[int, int], str | None] | None:
        lines = not sys.stderr.isatty()
        return None if lines and not os.environ.get("CI") else reported_by(Status(ranks, stats, arguments), lines)

    return line

"""The line on the terminal that tells how far a run has come."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phantora.sim.simulator import Stats


def status_line(world_size: int, stats: Sequence[Stats]) -> Callable[[int], str]:
    """What to call with the number of living ranks; `stats` holds the newest."""
    begin = time.monotonic()

    def line(alive: int) -> str:
        parts = [f"{alive}/{world_size} ranks"]
        if stats:
            now, wall = stats[-1], max(time.monotonic() - begin, 1e-3)
            seconds = now.virtual_ns * 1e-9
            parts += [f"optimizer step {now.optimizer_steps}"] if now.optimizer_steps else []
            parts += [
                f"{seconds:.3f} s simulated",
                f"{now.records / wall:,.0f} events/s",
                f"{seconds / wall:.2f}x real time",
            ]
        return "phantora: " + ", ".join(parts)

    return line

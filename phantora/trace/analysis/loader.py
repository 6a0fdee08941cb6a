"""The DataLoader of a simulated run: how fast batches are made and used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from phantora.trace.analysis.units import duration

LOADER = "DataLoader"
"""The name of waits for it."""
_MOST_WORKERS = 32  # of a rank, more of which hardly any host has


@dataclass(frozen=True)
class Loader:
    """The DataLoader whose batches a simulated script waits for longest."""

    batch: float
    """ns of CPU for a batch, of one worker on the simulated host."""
    used: float
    """ns from one batch to the next without waits for it."""
    workers: int
    """0: the script itself makes the batches."""
    starts: int
    """Times that the workers were started: with each epoch, without persistent_workers."""
    rank: int | None = None
    """The rank whose loader is the slowest by far, if there is one."""

    @property
    def limits(self) -> bool:
        """True if batches are made more slowly than they are used."""
        return self.made > self.used

    @property
    def made(self) -> float:
        """ns from one batch to the next as they are made."""
        return self.batch / max(1, self.workers)

    def sentence(self) -> str:
        """``2 workers make a batch every 168 ms, the script uses one every 3.24 ms``."""
        of = f"rank {self.rank}'s " if self.rank is not None else ""
        who = f"{of}{self.workers} worker{'s' * (self.workers > 1)} make{'s' * (self.workers == 1)}"
        if not self.workers:
            who = of + "script" if of else "the script"
            return f"{who} itself makes each batch, in {duration(self.made)}, and uses it in {duration(self.used)}"
        return f"{who} a batch every {duration(self.made)}, the script uses one every {duration(self.used)}"

    def remedy(self) -> str:
        """What would make the script wait less."""
        needed = ceil(self.batch / max(1.0, self.used))
        again = "; persistent_workers=True keeps workers from epoch to epoch" if self.starts > 1 else ""
        if not self.limits and not self.workers:
            return f"num_workers=1 or more makes batches meanwhile{again}"
        if not self.limits:
            return f"a larger prefetch_factor{again}"
        if needed > _MOST_WORKERS:
            cheaper = "make batches cheaper (prepared data, fewer transforms, or transforms on the GPU)"
            return f"{cheaper}: num_workers would have to be {needed:,}{again}"
        return f"num_workers={needed}, or cheaper transforms{again}"


def loader_of(trailer: Mapping[str, Any]) -> Loader | None:
    """None without batches, and for a real run."""
    found = trailer.get("loader")
    return Loader(**found) if found else None

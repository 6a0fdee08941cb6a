"""Memory of the hosts: what the ranks of one take at most, and whether it is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phantora.trace.analysis.units import percent, size
from phantora.units import GIB

_NAMED = GIB
"""Less of a host is not worth a line."""


@dataclass(frozen=True)
class HostMemory:
    """Bytes of the host that has least left."""

    taken: int
    """Highest use: the sum of its ranks' peaks, of pinned memory and large tensors."""
    pinned: int
    """Among them."""
    capacity: int
    """0: unknown."""

    @property
    def short(self) -> bool:
        """True if the host runs out of memory."""
        return 0 < self.capacity < self.taken

    def __str__(self) -> str:
        of = f" of {self.capacity / GIB:,.0f}" if self.capacity else ""
        return f"{self.taken / GIB:,.1f}{of} GiB ({self.pinned / GIB:,.1f} pinned)"

    def verdict(self) -> str:
        """A sentence."""
        taken = f"{size(self.taken)} of its memory ({size(self.pinned)} pinned)"
        if self.short:
            more = size(self.taken - self.capacity)
            return f"Does not fit: the ranks of a host take {taken}, {more} more than it has."
        left = f", {percent(self.capacity - self.taken, self.capacity)} left" if self.capacity else ""
        return f"The ranks of a host take at most {taken}{left}."


def host_memory(extra: Mapping[str, Any], trailer: Mapping[str, Any]) -> HostMemory | None:
    """Reads the `extra` metadata of a log and its trailer; None if the ranks use next to no host memory."""
    taken, pinned = (int(trailer.get(name) or 0) for name in ("host_memory_bytes", "host_pinned_bytes"))
    found = HostMemory(taken, pinned, int(extra.get("host_memory_bytes") or 0))
    return found if taken >= _NAMED or found.short else None

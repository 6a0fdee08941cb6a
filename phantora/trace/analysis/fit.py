"""Does a run fit the memory of its GPUs and hosts: the numbers, and the one wording of the verdict."""

from __future__ import annotations

from dataclasses import dataclass, field

from phantora.json_data import Bytes
from phantora.trace.analysis.host_memory import HostMemory
from phantora.trace.analysis.units import percent, size
from phantora.units import GIB

MARGIN = 0.04
"""Share of a GPU that a safe run leaves: less is gone with other shapes or a longer run's fragmentation."""
_MOST_RANKS = 8


@dataclass(kw_only=True)
class Fit:
    """Fit of a run into the GPUs' memory."""

    fits: bool
    taken: Bytes
    """Bytes of the fullest GPU at most, as nvidia-smi shows it. Where the run does not fit: the bytes that it needs, if
    more than there is; else those before the allocation that failed."""
    capacity: Bytes
    left: Bytes = field(init=False)
    rank: int = 0
    """Rank with the least free memory."""
    allocated: Bytes = 0
    """0: only `taken` is known."""
    cached: Bytes = 0
    """Reserved by the allocator beyond what was allocated at the peak: cache and fragmentation."""
    outside: Bytes = 0
    """Driver, libraries and NCCL's buffers."""
    shared: bool = False
    """Other processes of the run take memory of the GPU, too."""
    left_by_rank: dict[int, Bytes] = field(default_factory=dict)
    """Bytes left on each rank's GPU at its own peak."""
    failed: list[int] = field(default_factory=list)
    """Ranks of which an allocation failed."""
    survived: bool = False
    """The script went on without the allocation that failed."""
    asked: Bytes = 0
    """Bytes of the allocation that failed; 0 if unknown."""
    site: str = ""
    """Line of the script whose allocation failed."""
    by_chance: Bytes = 0
    """Bytes that the rank may take beyond `taken`: what NCCL's watchdog frees late (``watchdog_uncertainty.py``)."""
    host: HostMemory | None = None
    """Memory of the host that has the least left, where it matters."""
    margin: float = MARGIN
    holds: str = ""
    """What fills the GPU of a run that does not fit, the largest part first."""
    remedy: str = ""
    """A change that would make the run fit; "" if it fits or nothing is known."""
    says: list[str] = field(default_factory=list)
    """The verdict, and what is left on the other ranks; where the run does not fit what the memory holds, and what
    would help."""

    def __post_init__(self) -> None:
        self.left = self.capacity - self.taken

    @property
    def in_some_runs(self) -> bool:
        """True if the run fits or not by the time at which NCCL's watchdog frees buffers."""
        return self.fits and self.by_chance > self.left

    @property
    def advice(self) -> str:
        """The remedy as a sentence; "" without one."""
        return f"What would help: {self.remedy}." if self.remedy else ""

    def short(self, until: str = "") -> str:
        """``18.9 of 79.2 GiB (76 % left)``, or why it does not fit. `until`: how long it fits."""
        taken, of = f"{self.taken / GIB:.1f}", f"of {self.capacity / GIB:.1f} GiB"
        if self._of_host():
            return f"no: the host runs out of memory, {self.host}"
        if not self.fits and self.failed:
            return f"no: {self._request()}"
        if not self.fits:
            return f"no: needs {taken} {of}" if self.taken > self.capacity else "no"
        if self.in_some_runs:
            return f"in some runs only: {taken} {of} and up to {self.by_chance / GIB:.1f} GiB more"
        host = f"   host {self.host}" if self.host else ""
        return f"{taken} {of} ({100 * self.left / self.capacity:.0f} % left){until}{host}"

    def sentence(self) -> str:
        """The verdict with all numbers that are known."""
        taken = f"{size(self.taken)} of {size(self.capacity)}"
        of = f"{self._subject()} {taken}{self._parts()}"
        if self.failed and not self.survived:
            return f"Does not fit: {self._request()}; {of}."
        if self.failed:
            return f"An allocation of {self._ranks()} failed, and the script went on without it. At the peak {of}."
        if not self.fits and not self._of_host():
            needs = f": needs {taken}, {size(-self.left)} more than there is" if self.left < 0 else ""
            return f"Does not fit{needs}."
        left = f"{size(self.left)} ({percent(self.left, self.capacity)}) left"
        if self.by_chance > self.left:
            late = f"what NCCL's watchdog frees late by chance may take {size(self.by_chance)} more"
            return f"Fits in some runs only: {of}, {left}; {late}."
        if self.left - self.by_chance < self.margin * self.capacity:
            return f"Fits, barely: {of}, {left}; other shapes or a longer run may not."
        return f"Fits: {of}, {left}."

    def _of_host(self) -> bool:
        """True if the host runs out of memory."""
        return self.host is not None and self.host.short

    def _request(self) -> str:
        """``rank 0 asked for 8.00 GiB at train.py:9``."""
        others = f" ({self._ranks()} did not fit)" if len(self.failed) > 1 else ""
        what = f"asked for {size(self.asked)}" if self.asked else "had no room"
        return f"rank {self.rank} {what}" + (f" at {self.site}" if self.site else "") + others

    def _subject(self) -> str:
        return f"rank {self.rank} takes" if self.allocated else "the fullest GPU takes"

    def _parts(self) -> str:
        if not self.allocated:
            return ""
        others = "driver, NCCL and other processes" if self.shared else "driver and NCCL"
        outside = f", {size(self.outside)} {others}" if self.outside else ""
        return f" ({size(self.allocated)} allocated, {size(self.cached)} cached or fragmented{outside})"

    def _ranks(self) -> str:
        ranks = ", ".join(map(str, self.failed[:_MOST_RANKS])) + (" and more" if len(self.failed) > _MOST_RANKS else "")
        return f"rank{'s' * (len(self.failed) > 1)} {ranks}"

"""The making of data: the time of a step by it where it decides, and what the loader that decides needs. And other work
on the CPU that no model has.

A simulated run counts the CPU time of its DataLoader's batches only with ``--data-loading`` ``measured``, a time, or
``auto`` for a loader that makes the script wait. What is not counted is in the trailer (``runs/data.py``). This module
alone decides whether it is added to the step: the report's steady step then has it as a wait of the GPU for its host,
and so do all that print a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from phantora.trace.analysis.report import HostWait, Times
from phantora.trace.analysis.uncertainty import Bar
from phantora.trace.analysis.units import duration

DATA = "data"  # what widens an error bar: the CPU time of data
CPU_WORK = "cpu"  # what widens an error bar: the script's work on the CPU that no model has
_DECIDES = 1.0  # of a step, for such work to widen its bar: this machine's CPU takes longer for it than others
LOADER = "DataLoader"
"""The name of waits for it."""
LONGER = 0.1  # of a step: what data add less is none of the range
_FACTS = ("data_fastest", "data_step", "data_slowdown", "uncounted_cpu_ns")
_MOST_WORKERS = 32  # of a rank, more of which hardly any host has


@dataclass(frozen=True)
class DataTime:
    """CPU time of data that no row of the log has."""

    ns: float
    """Added to a step; 0: it decides nothing."""
    bar: Bar | None
    """Error bar of the step with it."""

    def added(self, steady: Times) -> Times:
        """`steady` with this time as a wait for the host."""
        if not self.ns:
            return steady
        stalls = steady.stalls | {"host": steady.stalls.get("host", 0.0) + self.ns}
        return replace(steady, time=steady.time + self.ns, idle=steady.idle + self.ns, stalls=stalls)

    def waits(self, found: list[HostWait]) -> list[HostWait]:
        """`found` with this time in the DataLoader."""
        if not self.ns:
            return found
        own = sum(wait.time for wait in found if wait.name == LOADER)
        return [HostWait(LOADER, own + self.ns), *(wait for wait in found if wait.name != LOADER)]


def data_time(trailer: Mapping[str, Any], step: float, bar: Bar | None, source: str) -> DataTime:
    """The time of data in a step of `step` ns with the error bar `bar`, None of a real run. `source`: what found the
    steps."""
    if bar is None:
        return DataTime(0.0, None)
    of = float(trailer.get("data_of_ns") or step) / step if step else 1.0  # a replay has another step
    names = ("data_fastest", "data_step", "data_slowdown")
    least, own, most = (max(1.0, float(trailer.get(name) or 0.0) * of) for name in names)
    work = float(trailer.get("uncounted_cpu_ns") or 0.0) / step if step else 0.0
    if most - 1 <= max(bar.above, LONGER, work):
        return DataTime(0.0, Bar(bar.below, work, CPU_WORK) if work > max(bar.above, _DECIDES) else bar)
    if own <= 1 + LONGER or source == "run":
        return DataTime(0.0, Bar(bar.below, most - 1, DATA))
    return DataTime((own - 1) * step, Bar(1 - least / own, most / own - 1, DATA))


def data_of(trailer: Mapping[str, Any], step: float, factor: float) -> dict[str, Any]:
    """For the trailer of a replay: the facts in that of the replayed run, whose simulated step takes `step` ns, with
    `factor` times the time of its host."""
    found = {name: float(trailer[name]) * factor for name in _FACTS if trailer.get(name)}
    if loader := trailer.get("loader"):
        found["loader"] = loader | {name: loader[name] * factor for name in ("batch", "used")}
    return found | {"data_of_ns": float(trailer.get("data_of_ns") or step)} if found else {}


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

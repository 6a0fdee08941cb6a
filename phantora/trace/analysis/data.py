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
from typing import Any

from phantora.trace.analysis.loader import LOADER, loader_of
from phantora.trace.analysis.report import HostWait, Times
from phantora.trace.analysis.steps import Steps
from phantora.trace.analysis.uncertainty import Bar

DATA = "data"  # what widens an error bar: the CPU time of data
CPU_WORK = "cpu"  # what widens an error bar: the script's work on the CPU that no model has
_DECIDES = 1.0  # of a step, for such work to widen its bar: this machine's CPU takes longer for it than others
LONGER = 0.1  # of a step: what data add less is none of the range
_OF_DATA = ("data_fastest", "data_step", "data_slowdown")
_FACTS = (*_OF_DATA, "uncounted_cpu")


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


def data_time(trailer: Mapping[str, Any], step: float, bar: Bar | None, steps: Steps) -> DataTime:
    """The time of data in a step of `step` ns with the error bar `bar`, None of a real run. `steps`: of the run."""
    if bar is None:
        return DataTime(0.0, None)
    if "data_rank" in trailer and trailer["data_rank"] not in steps.of_rank:
        trailer = {name: value for name, value in trailer.items() if name not in _OF_DATA}  # of another rank
    of = float(trailer.get("data_of_ns") or step) / step if step else 1.0  # a replay has another step
    names = ("data_fastest", "data_step", "data_slowdown")
    least, own, most = (max(1.0, float(trailer.get(name) or 0.0) * of) for name in names)
    if own <= 1 + LONGER and (short := _missing_waits(trailer, steps)) > 1 + LONGER:
        least, own, most = (max(1.0, short * each) for each in trailer.get("data_hosts", (1.0, 1.0, 1.0)))
    work = float(trailer.get("uncounted_cpu") or 0.0) * of
    if most - 1 <= max(bar.above, LONGER, work):
        return DataTime(0.0, Bar(bar.below, work, CPU_WORK) if work > max(bar.above, _DECIDES) else bar)
    if own <= 1 + LONGER or steps.source == "run":
        return DataTime(0.0, Bar(bar.below, most - 1, DATA))
    return DataTime((own - 1) * step, Bar(1 - least / own, most / own - 1, DATA))


def _missing_waits(trailer: Mapping[str, Any], steps: Steps) -> float:
    """Times as long as its steps that a run takes which waits for its workers, if it is so short that they had made all
    of its batches ahead; else 1."""
    loader = loader_of(trailer)
    if loader is None or not loader.workers or not loader.used or steps.waiting:
        return 1.0
    if loader.rank is not None and loader.rank not in steps.of_rank:
        return 1.0
    return max(1.0, loader.made / loader.used)


def data_of(trailer: Mapping[str, Any], step: float, factor: float) -> dict[str, Any]:
    """For the trailer of a replay: the facts in that of the replayed run, whose simulated step takes `step` ns, with
    `factor` times the time of its host."""
    found = {name: float(trailer[name]) * factor for name in _FACTS if trailer.get(name)}
    if loader := trailer.get("loader"):
        found["loader"] = loader | {name: loader[name] * factor for name in ("batch", "used")}
        found["data_hosts"] = trailer.get("data_hosts", (1.0, 1.0, 1.0))
    found |= {name: trailer[name] for name in ("data_rank",) if name in trailer}
    return found | {"data_of_ns": float(trailer.get("data_of_ns") or step)} if found else {}

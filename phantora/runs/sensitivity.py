"""Steps later in a run, and on slower and faster hosts: the first part of its recording, simulated again with its
prices.

The first steps of a run come before the power limiters of its GPUs have settled, in some 0.4 s. The recording is
simulated until they have: each time the limiters go on, when the first step ends, from where they would settle if the
steps of the pass before were repeated. The steps of the last time are the settled ones (docs/glossary.md). A run that
is long enough has settled itself: one pass from where its limiters stand at its end shows that.

A long run is simulated up to the steps that follow its first steady one, for as long as the limiters take to settle.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from phantora.errors import PhantoraError
from phantora.runs.assemble import Recorded, Simulation
from phantora.runs.replays import Replays
from phantora.runs.samples import sampled
from phantora.runs.setup import Setup
from phantora.trace.analysis.steps import Steps, find_steps
from phantora.trace.reader import Log, open_log

if TYPE_CHECKING:
    from phantora.sim.replay import Powers

SLOWER = 1.5
MOST_FOLDED = 1024  # ranks of a folded run: its processes are few, but its collectives have flows of all ranks
MOST_PASSES = 16
SETTLED = 0.001  # by less than this share of a step two passes differ when the limiters have settled
EQUAL = 0.001  # by less than this share a step of the first part differs from that of the run

Times = dict[int, float]
"""ns of steps by their numbers."""


@dataclass(frozen=True)
class _Part:
    """The simulated part of a recording, and the steps that count."""

    recorded: Recorded
    by: str | None = None
    """Source of the steps, as for ``find_steps``; None: as the analysis finds them."""
    numbers: frozenset[int] | None = None
    """None: all steps."""

    def times(self, steps: Steps) -> Times:
        """Times of the steps that count, the mean over the ranks."""
        times: dict[int, list[int]] = {}
        for own in steps.of_rank.values():
            for step in own:
                if self.numbers is None or step.number in self.numbers:
                    times.setdefault(step.number, []).append(step.end - step.start)
        return {number: statistics.fmean(times[number]) for number in sorted(times)}

    def counted(self, steps: Steps) -> list[int]:
        """Numbers of the steps that stand for the run and are compared between passes."""
        steady = steps.identical()
        return [number for number in self.compared(self.times(steps)) if number in steady]

    def compared(self, times: Times) -> list[int]:
        """Numbers of the steps of `times` that are compared between passes: in a part not the first, whose host finds
        queues empty that are full later."""
        return sorted(times)[self.numbers is not None :]


@dataclass(frozen=True)
class _Settled:
    """The end of the passes in which the limiters settle."""

    times: Times
    """Times of the last pass."""
    powers: Powers | None
    """States of the limiters; None if power limits nothing, or without a record of it."""
    reported: dict[str, Any]
    """For the trailer."""


def simulated_again(
    simulation: Simulation, setup: Setup, recorded: Recorded, recorded_run: Log | None = None, *, hosts: bool = True
) -> dict[str, Any]:
    """For the log's trailer, before it is closed; empty where nothing is recorded. `recorded_run`: the log that the
    recording comes from, if that is another.

    `settled`, where power limits the run: ns of the settled steps by number, and where the time of a steady one goes.
    `host_sensitivity`: ns of settled steps by factor on the host's time, and between which factors hosts lie that pass
    for this one. `skipped` in either is the reason why there is none. Without `hosts` the others alone.
    `without_stragglers`: by rank with a factor of ``--straggler`` the share of a settled step that passes by it."""
    log, spec, host = simulation.log, setup.spec, setup.cluster.host
    if log is None or not log.rows or not recorded.records:
        return {}
    hosts = hosts and spec.host_time == "modelled"
    about = {"spread": list(host.spread), "measured": host.measured}
    if setup.fold and setup.fold.world_size > MOST_FOLDED:
        skipped = f"the folded run has {setup.fold.world_size:,} ranks, {MOST_FOLDED:,} at most"
        sampled_not = {"spread": {"skipped": skipped}} if spec.output.samples else {}
        return sampled_not | ({"host_sensitivity": {**about, "skipped": skipped}} if hosts else {})
    log.end_rows()
    written = open_log(log.path)
    own = find_steps(written)
    replays = Replays(simulation, setup, all_rows=own.source == "run")
    settled = None
    recorded_steps = own if recorded_run is None else find_steps(recorded_run)
    settling_ns = float(written.metadata.extra["settling_ns"])
    part = _first_part(recorded, recorded_steps, settling_ns)
    if part is not None:
        settled = _as_at_the_end(replays, part, _late(own, settling_ns), simulation.powers)
        settled = settled or _settled(replays, part, part.times(own))
    if part is None or settled is None:
        part = _Part(recorded)
        settled = _settled(replays, part)
    assert settled is not None
    found = {"settled": settled.reported} if settled.reported else {}
    if spec.output.samples:
        settled_part = replace(part, recorded=replace(part.recorded, power=settled.powers))
        found["spread"] = sampled(replays, setup, settled_part.recorded, settled_part.counted(own), part.by)
    if setup.what_if.straggler:
        own_times = {number: settled.times[number] for number in part.counted(own) if number in settled.times}
        found["without_stragglers"] = _without_stragglers(simulation, setup, part, own_times, replays.all_rows)
    if hosts:
        part = replace(part, recorded=replace(part.recorded, power=settled.powers))
        found["host_sensitivity"] = about | _on_hosts(replays, part, settled.times, host.spread)
    return found


def _first_part(recorded: Recorded, steps: Steps, settling_ns: float) -> _Part | None:
    """Up to the end of one step more than those that count: the steady ones of the first `settling_ns`, at least two.
    None where the run is as short, or not all ranks have steps."""
    from phantora.trace.recording import first_part

    steady = sorted(steps.identical())
    if set(steps.of_rank) != set(recorded.records) or len(steady) < 2:
        return None
    begin = min(step.start for own in steps.of_rank.values() for step in own if step.number == steady[0])
    ends = dict.fromkeys(steps.numbers(), 0)
    for own in steps.of_rank.values():
        for step in own:
            ends[step.number] = max(ends[step.number], step.end)
    last = next((number for number in steady[1:] if ends[number] >= begin + settling_ns), None)
    following = next((number for number in ends if last is not None and number > last), None)
    if following is None:
        return None
    until = {rank: [s.until for s in own if s.number == following] for rank, own in steps.of_rank.items()}
    if not all(len(found) == 1 and found[0] is not None for found in until.values()):
        return None
    records = {rank: first_part(recorded.records[rank], int(found[0] or 0)) for rank, found in until.items()}
    numbers = frozenset(number for number in steady if last is not None and number <= last)
    return _Part(replace(recorded, records=records), steps.source, numbers)


def _late(steps: Steps, settling_ns: float) -> float | None:
    """ns of the steps that begin when the limiters have settled; None where there are none."""
    steady = steps.identical()
    own = [step for of_rank in steps.of_rank.values() for step in of_rank if step.number in steady]
    begin = min((step.start for step in own), default=0)
    times = [step.end - step.start for step in own if step.start >= begin + settling_ns]
    return statistics.median(times) if times else None


def _as_at_the_end(replays: Replays, part: _Part, late: float | None, powers: Powers) -> _Settled | None:
    """A pass from `powers`, where the limiters stand at the end of the run. None where its steps take another time than
    `late`, that of the run's last ones, or power limits nothing."""
    if late is None or not _limited(powers):
        return None
    try:
        with replays.run(replace(part.recorded, power=powers)) as (log, powers):
            steps = find_steps(log, by=part.by)
            times = part.times(steps)
            now = {number: times[number] for number in part.compared(times) if number in steps.steady()}
            if None in powers.values() or not now or not _equal(now, dict.fromkeys(now, late), SETTLED):
                return None
            return _Settled(times, powers, _reported(log, steps, part, times))
    except PhantoraError:
        return None


def _limited(powers: Powers) -> bool:
    """True if power slowed a GPU in its last steps."""
    return any(state is not None and state.lowest_clock < 1 for state in powers.values())


def _reported(log: Log, steps: Steps, part: _Part, times: Times) -> dict[str, Any]:
    """For the trailer, of the log of the last pass."""
    from phantora.trace.analysis.analyze import steady_times

    return {"source": steps.source, "steps_ns": _json(times), "steady": steady_times(log, steps)}


def _settled(replays: Replays, part: _Part, expected: Times | None = None) -> _Settled | None:
    """Passes until the limiters have settled. None where the first, which is the run itself, has other times than
    `expected`."""
    powers: Powers = dict.fromkeys(part.recorded.records)
    before: Times | None = None
    times: Times = {}
    try:
        for left in reversed(range(MOST_PASSES)):
            with replays.run(replace(part.recorded, power=powers)) as (log, powers):
                steps = find_steps(log, by=part.by)
                times = part.times(steps)
                if before is None and expected is not None and not _equal(times, expected, EQUAL):
                    return None
                if None in powers.values():
                    return _Settled(times, None, {"skipped": "no optimizer ends the steps of every rank"})
                if not _limited(powers):
                    return _Settled(times, None, {})
                now = {number: times[number] for number in part.compared(times) if number in steps.steady()}
                if not left or (before is not None and _equal(now, before, SETTLED)):
                    return _Settled(times, powers, _reported(log, steps, part, times))
                before = now
    except PhantoraError as error:
        if expected is not None:
            return None
        return _Settled(times, None, {"skipped": _first_line(error)})
    raise AssertionError("the last pass returns")


def _equal(times: Times, others: Times, share: float) -> bool:
    """True for the same steps, none of which differs by more than `share`."""
    return times.keys() == others.keys() and all(abs(times[n] - ns) <= share * ns for n, ns in others.items())


def _without_stragglers(
    simulation: Simulation, setup: Setup, part: _Part, own: Times, all_rows: bool
) -> dict[str, float]:
    """By rank: share of the steps `own` that they are shorter by if the rank's kernels take their own time."""
    found = {}
    for rank in {one.rank: None for one in setup.what_if.straggler}:
        others = tuple(one for one in setup.what_if.straggler if one.rank != rank)
        healed = replace(setup, what_if=replace(setup.what_if, straggler=others))
        times = _settled(Replays(simulation, healed, all_rows=all_rows), part)
        if times is not None and own.keys() <= times.times.keys():
            found[str(rank)] = 1 - sum(times.times[number] for number in own) / sum(own.values())
    return found


def _on_hosts(replays: Replays, part: _Part, own: Times, spread: Sequence[float]) -> dict[str, Any]:
    """Times by factor on the host's time, `own` at 1; or why there are none. Where the fastest or slowest host changes
    nothing, those between are left out."""
    factors = {1 / SLOWER, SLOWER, *(factor for factor in spread if not 1 / SLOWER <= factor <= SLOWER)}
    counted = {number: own[number] for number in part.compared(own)}
    times = {"1": _json(counted)}
    unmoved: set[bool] = set()  # by faster and slower
    for factor in sorted(factors, key=lambda factor: abs(math.log(factor)), reverse=True):
        if (factor > 1) in unmoved:
            continue
        scaled = replace(part.recorded, host_scale=factor * part.recorded.host_scale)
        try:
            with replays.run(scaled) as (log, _):
                found = part.times(find_steps(log, by=part.by))
            found = {number: found[number] for number in counted if number in found}
            times[f"{factor:.4g}"] = _json(found)
            if _equal(found, counted, EQUAL):
                unmoved.add(factor > 1)
        except PhantoraError as error:  # what was recorded does not fit together at another pace
            return {"skipped": f"at {factor:.2f} times the host's time: {_first_line(error)}"}
    return {"steps_ns": times}


def _first_line(error: PhantoraError) -> str:
    return str(error).splitlines()[0].rstrip(":")


def _json(times: Times) -> dict[str, float]:
    return {str(number): ns for number, ns in times.items()}

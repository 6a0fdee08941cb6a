"""What a run's steps would take later, and on slower and faster hosts: its recording, simulated again with its prices.

The first steps of a run come before the power limiters of its GPUs have settled, in some 0.4 s. The recording is
simulated until they have: each time the limiters go on, when the first step ends, from where they stood at the end of
the last step. The steps of the last time are the settled ones (docs/glossary.md).
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from phantora.errors import PhantoraError
from phantora.outputs import unnamed
from phantora.runs.assemble import Recorded, Simulation
from phantora.runs.setup import Setup

if TYPE_CHECKING:
    from phantora.sim.replay import Powers
    from phantora.trace.analysis.report import Report

SLOWER = 1.5
MOST_RECORDS = 300_000  # of all ranks: each host then takes a few seconds at most
MOST_FOLDED = 1024  # ranks of a folded run: its processes are few, but its collectives have flows of all ranks
MOST_PASSES = 16
SETTLED = 0.001  # by less than this share of a step two passes differ when the limiters have settled


def simulated_again(
    simulation: Simulation, setup: Setup, recorded: Recorded, *, hosts: bool = True
) -> dict[str, Any]:
    """For the log's trailer, before it is closed; empty where nothing is recorded.

    `settled`, where power limits the run: ns of every settled step by its number, and where the time of a steady one
    goes. `host_sensitivity`: ns of every settled step by factor on the host's time, and between which factors hosts lie
    that pass for this one. `skipped` in either says why there is none. Without `hosts` the first alone."""
    log, spec, host = simulation.log, setup.spec, setup.cluster.host
    if log is None or not log.rows or not recorded.chunks:
        return {}
    records = sum(chunk.records for chunk in recorded.chunks)
    skipped = ""
    if records > MOST_RECORDS:
        skipped = f"the run is long ({records:,} records, {MOST_RECORDS:,} at most); fewer steps would do"
    elif setup.fold and setup.fold.world_size > MOST_FOLDED:
        skipped = f"the folded run has {setup.fold.world_size:,} ranks, {MOST_FOLDED:,} at most"
    output = replace(spec.output, recording=False, flows=False)
    again = replace(setup, spec=replace(spec, output=output, live=False))
    found: dict[str, Any] = {}
    if not skipped:
        settled, powers = _settled(simulation, again, recorded)
        found = {"settled": settled} if settled else {}
        recorded = replace(recorded, power=powers)
    if hosts and spec.host_time == "modelled":
        about = {"spread": list(host.spread), "measured": host.measured}
        reported = {"skipped": skipped} if skipped else _hosts(simulation, again, recorded)
        found["host_sensitivity"] = about | reported
    return found


def _settled(simulation: Simulation, setup: Setup, recorded: Recorded) -> tuple[dict[str, Any], Powers | None]:
    """The settled steps and their source, and the limiters' states at their end; empty and None where power limits
    nothing, or where the recording does not fit together."""
    powers: Powers = dict.fromkeys(simulation.session.real)
    before = 0.0
    found: dict[str, Any] = {}
    for _ in range(MOST_PASSES):
        try:
            report, reached = _again(simulation, setup, replace(recorded, power=powers))
        except PhantoraError as error:
            return {"skipped": _first_line(error)}, None
        if None in reached.values():
            return {"skipped": "no optimizer ends the steps of every rank"}, None
        if not any(state is not None and state.lowest_clock < 1 for state in reached.values()):
            return {}, None
        powers = reached
        found = {"source": report.step_source, "steps_ns": _by_number(report), "steady": asdict(report.steady)}
        now = report.headline.step_time
        if abs(now - before) < SETTLED * now:
            break
        before = now
    return found, powers


def _hosts(simulation: Simulation, setup: Setup, recorded: Recorded) -> dict[str, Any]:
    spread = setup.cluster.host.spread
    factors = sorted({1 / SLOWER, SLOWER, *(factor for factor in spread if not 1 / SLOWER <= factor <= SLOWER)})
    steps = {}
    for factor in factors:
        scaled = replace(recorded, host_scale=factor * recorded.host_scale)
        try:
            report, _ = _again(simulation, setup, scaled)
            steps[f"{factor:.4g}"] = _by_number(report)
        except PhantoraError as error:  # what was recorded does not fit together at another pace
            return {"skipped": f"at {factor:.2f} times the host's time: {_first_line(error)}"}
    return {"steps_ns": steps}


def _first_line(error: PhantoraError) -> str:
    return str(error).splitlines()[0].rstrip(":")


def _again(simulation: Simulation, setup: Setup, recorded: Recorded) -> tuple[Report, Powers]:
    """The report of the recording, simulated again, and where the limiters stand at its end."""
    from phantora.sim.replay import Replayer
    from phantora.trace.analysis.analyze import analyze
    from phantora.trace.reader import open_log

    assert simulation.again is not None
    with unnamed("phantora-again") as path:  # a folder would stay where the run is killed
        again = simulation.again(path, setup, recorded)
        assert isinstance(again.simulator, Replayer)
        try:
            again.simulator.run()
        finally:
            again.close({})
        return analyze(open_log(path), details=False), again.simulator.powers


def _by_number(report: Report) -> dict[str, float]:
    """ns of every step. Which of them are steady is the run's own affair."""
    return {str(step.number): step.times.time for step in report.steps}

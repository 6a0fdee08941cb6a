"""What a run's steps would take on slower and faster hosts: its recording, simulated again with its prices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from phantora.errors import PhantoraError
from phantora.outputs import unnamed
from phantora.runs.assemble import Recorded, Simulation
from phantora.runs.setup import Setup

SLOWER = 1.5
MOST_RECORDS = 300_000  # of all ranks: each host then takes a few seconds at most
MOST_FOLDED = 1024  # ranks of a folded run: its processes are few, but its collectives have flows of all ranks


def host_sensitivity(simulation: Simulation, setup: Setup) -> dict[str, Any] | None:
    """For the log's trailer, before it is closed: ns of every step by its number, by factor on the host's time, and
    between which factors hosts lie that pass for this one; or why there is none. None where nothing scales."""
    log, spec, host = simulation.log, setup.spec, setup.cluster.host
    if log is None or not log.rows or not spec.output.recording or spec.host_time != "modelled":
        return None
    chunks = log.recording()
    records = sum(chunk.records for chunk in chunks)
    about = {"spread": list(host.spread), "measured": host.measured}
    if records > MOST_RECORDS:
        long = f"the run is long ({records:,} records, {MOST_RECORDS:,} at most); fewer steps would do"
        return {**about, "skipped": long}
    if setup.fold and setup.fold.world_size > MOST_FOLDED:
        return {**about, "skipped": f"the folded run has {setup.fold.world_size:,} ranks, {MOST_FOLDED:,} at most"}
    factors = sorted({1 / SLOWER, SLOWER, *(factor for factor in host.spread if not 1 / SLOWER <= factor <= SLOWER)})
    output = replace(spec.output, recording=False, flows=False)
    again = replace(setup, spec=replace(spec, output=output, live=False))
    steps = {}
    for factor in factors:
        recorded = Recorded(chunks, factor, {})
        try:
            steps[f"{factor:.4g}"] = _steps(simulation, again, recorded)
        except PhantoraError as error:  # what was recorded does not fit together at another pace
            return {**about, "skipped": f"at {factor:.2f} times the host's time: {str(error).splitlines()[0]}"}
    return {**about, "steps_ns": steps}


def _steps(simulation: Simulation, setup: Setup, recorded: Recorded) -> dict[str, float]:
    """ns of every step by its number. Which of them are steady is the run's own affair."""
    from phantora.trace.analysis.analyze import analyze
    from phantora.trace.reader import open_log

    assert simulation.again is not None
    with unnamed("phantora-host") as path:  # a folder would stay where the run is killed
        again = simulation.again(path, setup, recorded)
        assert again.simulator is not None
        try:
            again.simulator.run()
        finally:
            again.close({})
        return {str(step.number): step.times.time for step in analyze(open_log(path), details=False).steps}

"""Samples of a step: the recording with the noise of hosts, GPUs and links, simulated again and again (docs/spread.md).

Every replay has several steps, each of which is a sample. A run of several ranks is sampled twice: with noise of its
own for each rank, and with the same noise for all. The second has no waits for a slower rank.

The host that the user has is not known exactly, and how much its steps spread depends on its pace: a step that waits
for the GPU on a fast host waits for the host on a slow one. So samples are of several machines that pass for the host,
each as a multiple of its own typical step.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from phantora.errors import PhantoraError
from phantora.runs.assemble import Recorded, pace_of
from phantora.runs.replays import Replays
from phantora.runs.setup import Setup
from phantora.sim.noise import Machine, Noise, machines
from phantora.trace.analysis.steps import find_steps

MACHINES = 8


def sampled(
    replays: Replays, setup: Setup, recorded: Recorded, steps: Collection[int], by: str | None
) -> dict[str, Any]:
    """For the log's trailer. `steps` are the numbers of those that count, `by` their source.

    ``steps_ns`` has the samples, ``equal_ranks_ns`` those of ranks with equal noise; or ``skipped`` has the reason why
    there are none."""
    wanted, seed = setup.spec.output.samples, setup.spec.ranks.seed
    if not steps:
        return {"skipped": "no step stands for the run"}
    # The typical run has the pace of the slowest rank. Here each rank has its own.
    own = replace(recorded, host_scale=recorded.host_scale / pace_of(setup))
    known = setup.spec.host_time != "modelled"
    tried = machines(setup.cluster.host, min(MACHINES, wanted), seed)
    if known:
        tried = [Machine(drift=machine.drift) for machine in tried]
    found: dict[str, list[float]] = {"steps_ns": [], "equal_ranks_ns": []}
    try:
        typical = _steps(replays, own, steps, by)
        runs = []
        for machine in tried:
            run = replace(own, host_scale=own.host_scale * machine.pace)
            quiet = typical if machine.pace == 1 else _steps(replays, run, steps, by)
            runs.append((machine, run, {number: typical[number] / ns for number, ns in quiet.items()}))
        for name, common in (("steps_ns", False), ("equal_ranks_ns", True)):
            if common and len(recorded.records) == 1:
                continue
            sample = 0
            while len(found[name]) < wanted:
                machine, run, factors = runs[sample % len(runs)]
                noise = Noise(seed, sample, common, machine)
                times = _steps(replays, replace(run, noise=noise), steps, by)
                found[name] += [factors[number] * ns for number, ns in times.items() if number in factors]
                sample += 1
    except PhantoraError as error:
        return {"skipped": str(error).splitlines()[0].rstrip(":")}
    return {name: times[:wanted] for name, times in found.items() if times}


def _steps(replays: Replays, recorded: Recorded, steps: Collection[int], by: str | None) -> dict[int, float]:
    """ns of the steps of one replay by number, the mean over its ranks. Raises PhantoraError where it has none."""
    with replays.run(recorded) as (log, _):
        times: dict[int, list[int]] = {}
        for of_rank in find_steps(log, by=by).of_rank.values():
            for step in of_rank:
                if step.number in steps:
                    times.setdefault(step.number, []).append(step.end - step.start)
    if not times:
        raise PhantoraError(f"{log.path}: no steps were found in a sample")
    return {number: statistics.fmean(own) for number, own in sorted(times.items())}

"""Samples of a step: the recording with the noise of hosts, GPUs and links, simulated again and again (docs/spread.md).

Every replay has several steps, each of which is a sample. A run of several ranks is sampled twice: with noise of its
own for each rank, and with the same noise for all. The second has no waits for a slower rank.
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
from phantora.sim.noise import Noise
from phantora.trace.analysis.steps import find_steps


def sampled(
    replays: Replays, setup: Setup, recorded: Recorded, steps: Collection[int], by: str | None
) -> dict[str, Any]:
    """For the log's trailer. `steps` are the numbers of those that count, `by` their source.

    ``steps_ns`` has the samples, ``equal_ranks_ns`` those of ranks with equal noise; or ``skipped`` has the reason why
    there are none."""
    wanted = setup.spec.output.samples
    if not steps:
        return {"skipped": "no step stands for the run"}
    # The typical run has the pace of the slowest rank. Here each rank has its own.
    own = replace(recorded, host_scale=recorded.host_scale / pace_of(setup))
    found: dict[str, list[float]] = {"steps_ns": [], "equal_ranks_ns": []}
    try:
        for name, common in (("steps_ns", False), ("equal_ranks_ns", True)):
            if common and len(recorded.records) == 1:
                continue
            sample = 0
            while len(found[name]) < wanted:
                noise = Noise(setup.spec.ranks.seed, sample, common)
                found[name] += _steps(replays, replace(own, noise=noise), steps, by)
                sample += 1
    except PhantoraError as error:
        return {"skipped": str(error).splitlines()[0].rstrip(":")}
    return {name: times[:wanted] for name, times in found.items() if times}


def _steps(replays: Replays, recorded: Recorded, steps: Collection[int], by: str | None) -> list[float]:
    """ns of the steps of one replay, the mean over its ranks. Raises PhantoraError where it has none."""
    with replays.run(recorded) as (log, _):
        times: dict[int, list[int]] = {}
        for of_rank in find_steps(log, by=by).of_rank.values():
            for step in of_rank:
                if step.number in steps:
                    times.setdefault(step.number, []).append(step.end - step.start)
    if not times:
        raise PhantoraError(f"{log.path}: no steps were found in a sample")
    return [statistics.fmean(own) for _, own in sorted(times.items())]

"""Plays a job many times: each trial is a column, and all trials advance failure by failure."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from phantora.jobs.job import REPLICATED, Job, Machines

Floats = npt.NDArray[np.float64]
PARTS = ("useful", "checkpoints", "lost", "restarts", "hosts", "stragglers")
"""Parts of a job's time: steps that count; stops for checkpoints; work since the last checkpoint before a failure;
restarts; waits for a spare host; longer steps due to the slowest GPU."""
_MOST_FAILURES = 3000.0  # that a trial plays; a longer job repeats them
_QUANTILES = 4096
_BAR = 1.6449  # standard deviations on each side of 90 %


@dataclass(frozen=True)
class Trials:
    """Seconds and failures of each trial."""

    time: Floats
    failures: Floats
    parts: dict[str, Floats]
    """Times by :data:`PARTS`; their sum is ``time``."""


def play(job: Job, trials: int = 1000, seed: int = 0) -> Trials:
    """`trials` independent courses of `job`; the same for the same `seed`."""
    random = np.random.default_rng(seed)
    work = job.work * _step_factors(job.error, trials, random)
    scale = max(1.0, job.work / (_MOST_FAILURES * job.machines.mtbf))
    played = _play(job, work / scale, random)
    if scale == 1.0:
        return played
    return Trials(
        _stretch(played.time, work, scale),
        _stretch(played.failures, work, scale),
        {part: _stretch(value, work, scale) for part, value in played.parts.items()},
    )


def _stretch(value: Floats, work: Floats, scale: float) -> Floats:
    """Scales a job to `scale` times its length: the spread of independent pieces grows with the root."""
    relative = value / work * work.mean()
    mean = relative.mean()
    result: Floats = (mean + (relative - mean) / np.sqrt(scale)) * scale * work / work.mean()
    return result


def _step_factors(error: tuple[float, float], trials: int, random: np.random.Generator) -> Floats:
    z = random.standard_normal(trials)
    factors: Floats = np.maximum(0.1, 1.0 + z / _BAR * np.where(z < 0, *error))
    return factors


def _slowest(machines: Machines) -> Floats:
    """Quantiles of the slowest of all GPUs' time for a step, relative to the mean GPU's."""
    if not machines.spread:
        return np.ones(1)
    levels = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    normal = NormalDist()
    return np.array([1.0 + machines.spread * max(0.0, normal.inv_cdf(u ** (1.0 / machines.gpus))) for u in levels])


def _play(job: Job, work: Floats, random: np.random.Generator) -> Trials:
    machines, saves = job.machines, job.checkpoints
    trials = len(work)
    parts = {part: np.zeros(trials) for part in PARTS}
    failures, clock = np.zeros(trials), np.zeros(trials)
    slowest = _slowest(machines)
    out = None if machines.spares is None else np.full((trials, machines.spares + 1), -np.inf)
    running = np.arange(trials)
    restart = np.zeros(trials)
    while len(running):
        left = work[running] - parts["useful"][running]
        factor = slowest[random.integers(len(slowest), size=len(running))]
        up = random.exponential(machines.mtbf, len(running))
        stopped = np.minimum(up, restart[running])
        trained = up - stopped
        stops = np.ceil(left / saves.interval) - 1.0
        needed = left * factor + stops * saves.cost
        ends = trained >= needed
        cycle = saves.interval * factor + saves.cost
        kept = np.where(ends, stops, np.floor(np.maximum(0.0, trained - saves.lag) / cycle))
        last = _before_a_reclaim(job, trained - kept * cycle, random) / factor
        gained = np.where(ends, left, kept * saves.interval + last)
        spent = np.where(ends, needed, trained)
        parts["restarts"][running] += stopped
        parts["useful"][running] += gained
        parts["checkpoints"][running] += kept * saves.cost
        parts["checkpoints"][running] += np.where((last > 0) & ~ends, saves.cost, 0.0)
        parts["stragglers"][running] += gained * (factor - 1.0)
        stops = kept + np.where((last > 0) & ~ends, 1.0, 0.0)
        parts["lost"][running] += spent - gained * factor - stops * saves.cost
        clock[running] += stopped + spent
        running = running[~ends]
        back = _without_replica(job, parts["useful"][running], random)
        parts["useful"][running] -= back
        parts["lost"][running] += back
        restart[:] = job.restart
        if out is not None:
            wait = _wait(out, running, failures, clock, machines.repair)
            parts["hosts"][running] += wait
            clock[running] += wait
        failures[running] += 1
    return Trials(clock, failures, parts)


def _before_a_reclaim(job: Job, since: Floats, random: np.random.Generator) -> Floats:
    """Training time since the last checkpoint that one more saves, since the reclaim is announced; 0 at failures."""
    machines, saves = job.machines, job.checkpoints
    if not machines.reclaims or saves.cost + saves.lag > machines.notice:
        return np.zeros(len(since))
    reclaimed = random.random(len(since)) < machines.reclaimed
    saved: Floats = np.where(reclaimed, np.maximum(0.0, since - saves.cost - saves.lag), 0.0)
    return saved


def _without_replica(job: Job, useful: Floats, random: np.random.Generator) -> Floats:
    """Work that is done again because the host with the copy in memory is lost, too, before the job goes on from it."""
    if job.checkpoints.model != REPLICATED:
        return np.zeros(len(useful))
    lost = random.random(len(useful)) < 1.0 - np.exp(-job.restart / (job.machines.hosts * job.machines.mtbf))
    back: Floats = np.where(lost, np.minimum(useful, random.random(len(useful)) * job.checkpoints.persisted), 0.0)
    return back


def _wait(out: Floats, running: npt.NDArray[np.int64], failures: Floats, clock: Floats, repair: float) -> Floats:
    """Until a host is there: of those that failed, the oldest that no spare stands for must be repaired first."""
    spares = out.shape[1] - 1
    place = failures[running].astype(np.int64) % (spares + 1)
    out[running, place] = clock[running]
    oldest = out[running, (place + 1) % (spares + 1)]
    wait: Floats = np.maximum(0.0, oldest + repair - clock[running])
    return wait

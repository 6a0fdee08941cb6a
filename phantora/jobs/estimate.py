"""From the log of a short run to a long job: the inputs of ``phantora goodput``, and its answer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from phantora.errors import PhantoraError, known_names
from phantora.jobs.answer import Answer, Step, answer, checkpoint_cost, interval_of, step_of
from phantora.jobs.job import (
    CHECKPOINT,
    COPIED,
    DAY,
    HOUR,
    MODELS,
    MTBF_HOURS,
    REPLICATED,
    RESTART,
    SNAPSHOT,
    WRITTEN,
    Checkpoints,
    Job,
    Machines,
    mtbf_of_losses,
)
from phantora.trace.analysis.analyze import analyze
from phantora.trace.analysis.spread import longer_with
from phantora.trace.reader import Log

STOPS = {WRITTEN: CHECKPOINT, COPIED: SNAPSHOT, REPLICATED: SNAPSHOT}
"""Seconds of a stop where nothing is known, by model."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """A job. Times are seconds unless a name has another unit; None: from the log, or the best."""

    tokens: float | None = None
    """Tokens of the whole job."""
    steps: float | None = None
    """Steps of the whole job, in place of tokens."""
    gpus: int | None = None
    """Data-parallel copies of the run."""
    gpu_mtbf_hours: float = MTBF_HOURS[0]
    host_mtbf_hours: float = MTBF_HOURS[1]
    checkpoint_cost: float | None = None
    """Training stops for so long at a checkpoint."""
    checkpoint_lag: float | None = None
    """Until an asynchronous checkpoint is safe; None: by the model."""
    checkpoint: str = WRITTEN
    """Model of the checkpoints, of ``phantora.jobs.job.MODELS``."""
    reclaims: float = 0.0
    """Share of the hosts that are reclaimed in an hour."""
    notice: float = 120.0
    """From the announcement of a reclaim to the end of the host."""
    every: float | None = None
    """Between two checkpoints."""
    restart: float = RESTART
    """From a failure to the first step."""
    stragglers: float = 0.0
    """Standard deviation of the GPUs' speeds, as a share; a step waits for the slowest."""
    spares: int | None = None
    """Spare hosts; None: always enough."""
    repair: float = DAY
    """Until a failed host is back."""
    price: float | None = None
    """Dollars per GPU and hour."""
    trials: int = 1000
    """Simulated jobs."""


def estimate(log: Log, inputs: Inputs) -> Answer:
    """Days, cost and useful share of the job of which `log` is a short run. Raises PhantoraError for a log without
    steps, and for a job that never ends."""
    step = step_of(analyze(log))
    world, per_host = log.metadata.world_size, log.metadata.ranks_per_host
    gpus = inputs.gpus or world
    longer = longer_with(log.trailer, max(1.0, gpus / world))
    step = replace(step, time=step.time * longer, tokens=step.tokens * gpus / world)
    cost = inputs.checkpoint_cost if inputs.checkpoint_cost is not None else checkpoint_cost(log)
    if inputs.checkpoint not in MODELS:
        raise PhantoraError(
            f"--checkpoint {inputs.checkpoint}: unknown model; {known_names(inputs.checkpoint, MODELS)}"
        )
    assumed = _assumed(inputs, cost)
    on = f"in the log on {world:,} GPU{'s' * (world > 1)}, {per_host} a host"
    if longer > 1:
        assumed.append(
            f"a step takes {longer - 1:.1%} longer than the median one {on}: the slowest copy decides (SPREAD)"
        )
    elif gpus > world:
        assumed.append(f"a step takes as long as {on}")
    job = _job(step, gpus, min(per_host, gpus), inputs, STOPS[inputs.checkpoint] if cost is None else cost)
    return answer(job, step, inputs.price, inputs.trials, assumed)


def _assumed(inputs: Inputs, cost: float | None) -> list[str]:
    mtbf = (inputs.gpu_mtbf_hours, inputs.host_mtbf_hours)
    texts = {
        "30 days of steps (--tokens, --steps)": inputs.tokens is None and inputs.steps is None,
        f"a checkpoint stops training for {STOPS[inputs.checkpoint]:.0f} s (--checkpoint-cost)": cost is None,
        f"it is safe {_lag(inputs):.0f} s later (--checkpoint-lag)": inputs.checkpoint == COPIED
        and inputs.checkpoint_lag is None,
        "no reclaim takes two hosts at once": inputs.reclaims > 0,
        f"a restart takes {RESTART / 60:.0f} min (--restart)": inputs.restart == RESTART,
        "failures are as frequent as Llama 3's (--gpu-mtbf, --host-mtbf)": mtbf == MTBF_HOURS,
    }
    return [text for text, holds in texts.items() if holds]


def _lag(inputs: Inputs) -> float:
    return inputs.checkpoint_lag if inputs.checkpoint_lag is not None else CHECKPOINT * (inputs.checkpoint == COPIED)


def _job(step: Step, gpus: int, per_host: int, inputs: Inputs, cost: float) -> Job:
    machines = Machines(
        gpus=gpus,
        gpus_per_host=per_host,
        gpu_mtbf_hours=inputs.gpu_mtbf_hours,
        host_mtbf_hours=inputs.host_mtbf_hours,
        spares=inputs.spares,
        repair=inputs.repair,
        reclaims=inputs.reclaims,
        notice=inputs.notice,
        spread=inputs.stragglers,
    )
    restart = inputs.restart + step.first
    saves = Checkpoints(cost, HOUR, _lag(inputs), inputs.checkpoint)
    losses = mtbf_of_losses(machines, saves)
    every = interval_of(cost, restart, losses) if inputs.every is None else inputs.every
    if every <= 0:
        raise PhantoraError("--every: give a time above 0")
    if not 0 <= inputs.stragglers < 1:
        raise PhantoraError(f"--stragglers {inputs.stragglers:.0%}: give a share below 100%, such as 0.5%")
    if min(every, losses) + cost + restart > 20 * machines.mtbf or every + cost > 20 * losses:
        raise PhantoraError(
            f"the job fails every {machines.mtbf:.0f} s and needs {every + cost + restart:.0f} s from a restart to the "
            "next checkpoint: it never ends; shorten --every or --restart"
        )
    saves = replace(saves, interval=every)
    return Job(_steps(step, inputs) * step.time, machines, saves, restart, step.error)


def _steps(step: Step, inputs: Inputs) -> float:
    if inputs.tokens and inputs.steps:
        raise PhantoraError("--tokens and --steps both say how long the job is; give one of them")
    if inputs.tokens:
        if not step.tokens:
            raise PhantoraError("--tokens: the log does not show how many tokens a step has; give --steps")
        return inputs.tokens / step.tokens
    return inputs.steps or 30 * DAY / step.time

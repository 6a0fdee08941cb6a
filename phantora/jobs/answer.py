"""The job of a log: from the report of a short run to days, money and the share of useful time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from phantora.errors import PhantoraError
from phantora.jobs.job import DAY, HOUR, Job, best_interval, mtbf_of_losses, spares_for, young_interval
from phantora.jobs.montecarlo import PARTS, Trials, play
from phantora.json_data import Seconds, Unit
from phantora.trace.analysis.report import Report
from phantora.trace.reader import Log
from phantora.wire.names import CHECKPOINT, CHECKPOINT_WAIT

Range = tuple[float, float, float]
"""Mean, and the values that 5 % and 95 % of the trials stay below."""


@dataclass(frozen=True)
class Step:
    """A step of the log."""

    time: Seconds
    """Seconds."""
    error: tuple[float, float]
    tokens: float
    """Tokens of the whole job; 0 if the log does not show them."""
    first: Seconds
    """Seconds by which the first step is longer than a steady one: compilation and allocation."""


def checkpoint_cost(log: Log) -> float | None:
    """Seconds for which training stops at a checkpoint, as the log's saves took and waits for them; None without any.

    The first save waits for none, so the waits count for one save less."""
    words = log.words("name")
    of_rank: dict[int, dict[str, tuple[int, float]]] = {}
    codes = {words.index(name): name for name in (CHECKPOINT, CHECKPOINT_WAIT) if name in words}
    if not codes:
        return None
    for batch in log.batches(("name", "rank", "start", "end")):
        for code, name in codes.items():
            rows = batch["name"] == code
            for rank in np.unique(batch["rank"][rows]):
                mine = rows & (batch["rank"] == rank)
                count, spent = of_rank.setdefault(int(rank), {}).get(name, (0, 0.0))
                spent += float((batch["end"][mine] - batch["start"][mine]).sum())
                of_rank[int(rank)][name] = (count + int(mine.sum()), spent)
    costs = []
    for found in of_rank.values():
        saves, saving = found.get(CHECKPOINT, (0, 0.0))
        _, waiting = found.get(CHECKPOINT_WAIT, (0, 0.0))
        if saves:
            costs.append(saving / saves + waiting / max(1, saves - 1))
    return max(costs, default=0.0) * 1e-9 or None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Output of ``phantora goodput``. Times are seconds."""

    job: Job
    step: Step
    mtbf: Seconds
    failures: Range
    best_interval: Seconds
    young_interval: Seconds
    spares: int
    """Hosts with which 99.9 % of the failures find a spare one."""
    useful: Range
    """Share of the time in which steps count that are not done again."""
    shares: dict[str, float]
    """Mean shares of the time, by ``montecarlo.PARTS``."""
    time: Annotated[Range, Unit("seconds")]
    dollars: Range | None
    assumed: list[str]
    """Inputs that neither the log nor the user gives."""


def step_of(report: Report) -> Step:
    """The steady step of a log's report. Raises PhantoraError for a log without steps."""
    if report.step_source == "run":
        raise PhantoraError(f"{report.path} has no steps; `phantora goodput` needs a run of at least two")
    head = report.headline
    error = (head.error or 0.0, head.error_above or head.error or 0.0)
    first = max(0.0, report.steps[0].times.time - head.step_time) if report.steps and report.steps[0].note else 0.0
    tokens = head.throughput.tokens_per_step if head.throughput else 0.0
    return Step(head.step_time * 1e-9, error, tokens, first * 1e-9)


def interval_of(cost: float, restart: float, mtbf: float) -> float:
    """The best time between checkpoints; at least a minute, which no schedule goes below."""
    return max(60.0, best_interval(cost, restart, mtbf))


def answer(job: Job, step: Step, price: float | None, trials: int, assumed: Sequence[str] = ()) -> Answer:
    """Plays `job`; `price` is dollars per GPU and hour."""
    machines, saves = job.machines, job.checkpoints
    losses = mtbf_of_losses(machines, saves)
    played = play(job, trials)
    time = _range(played.time)
    rate = price * machines.gpus / HOUR if price else 0.0
    return Answer(
        job=job,
        step=step,
        mtbf=machines.mtbf,
        failures=_range(played.failures),
        best_interval=best_interval(saves.cost, job.restart, losses),
        young_interval=young_interval(saves.cost, losses),
        spares=spares_for(machines),
        useful=_range(played.parts["useful"] / played.time),
        shares=_shares(played),
        time=time,
        dollars=(time[0] * rate, time[1] * rate, time[2] * rate) if price else None,
        assumed=list(assumed),
    )


def _shares(played: Trials) -> dict[str, float]:
    whole = float(played.time.sum())
    return {part: float(played.parts[part].sum()) / whole for part in PARTS}


def _range(values: Any) -> Range:
    low, high = np.percentile(values, (5, 95))
    return float(np.mean(values)), float(low), float(high)


def spell(seconds: float) -> str:
    """``12.3 days``, ``5.1 h``, ``4.0 min``, ``8 s``."""
    for unit, scale in (("days", DAY), ("h", HOUR), ("min", 60.0)):
        if seconds >= (2 if unit == "days" else 1) * scale:
            return f"{seconds / scale:,.1f} {unit}"
    return f"{seconds:.3g} s"

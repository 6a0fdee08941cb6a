"""A simulated run checked against what a framework printed about the real one."""

from __future__ import annotations

from phantora.framework_logs.reader import StepLog
from phantora.framework_logs.statistics import Steady, steady
from phantora.trace.analysis.report import Report
from phantora.trace.diff.validation import ALLOCATED, RESERVED, SAMPLES, STEP, TOKENS, Quantity, Validation, validated


def validate(log: StepLog, report: Report, within: float) -> Validation:
    """Compares `log` with a simulated run's `report`. `within` is a share."""
    real = steady(log)
    found = _quantities(log, real, report)
    step = found[0]
    lines = f"{len(log.steps)} line{'s' * (len(log.steps) > 1)}"
    verdict = f"{log.framework}, {lines}: the simulated step is {_error(step.error)} the real one"
    return validated(verdict, found, within, real.findings())


def _error(error: float) -> str:
    return f"{100 * abs(error):.1f}% {'longer' if error > 0 else 'shorter'} than"


def _quantities(log: StepLog, real: Steady, report: Report) -> list[Quantity]:
    found = [Quantity(STEP, 1e9 * real.seconds, report.headline.step_time, "time")]
    simulated = report.headline.throughput
    gpus = int(report.metadata.get("world_size") or len(report.ranks)) if log.per_gpu else 1
    for name, rate, own in (
        (TOKENS, real.tokens_per_second, simulated.tokens_per_second if simulated else 0.0),
        (SAMPLES, real.samples_per_second, simulated.samples_per_second if simulated else 0.0),
    ):
        if rate and own:
            found.append(Quantity(name, rate, own / gpus, "rate"))
    peaks = [rank.gpu for rank in report.ranks]
    for name, level, own in (
        (ALLOCATED, log.allocated, max((peak.peak_allocated for peak in peaks), default=0)),
        (RESERVED, log.reserved, max((peak.peak_reserved for peak in peaks), default=0)),
    ):
        if level and own:
            found.append(Quantity(name, float(level), float(own), "memory"))
    return found

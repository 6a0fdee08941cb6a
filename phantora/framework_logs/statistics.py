"""The steady step of a log, and the steps that differ from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from phantora.framework_logs.reader import LoggedSteps, StepLog
from phantora.trace.analysis.units import duration

_START = 0.1  # share of the lines at the begin that may have start-up, compilation and warm caches
_FEWEST = 8  # lines by which a drift is told
_LEAST_OUTLIER, _DEVIATIONS = 0.15, 6.0
_LEAST_DRIFT, _ERRORS = 0.02, 4.0
_NORMAL = 1.4826  # standard deviations of a normal distribution in a median absolute deviation
_OF_MEDIAN = 1.2533  # standard error of a median over that of a mean
_MOST_NAMED = 6


@dataclass(frozen=True)
class Outliers:
    """Lines whose steps are longer than the steady ones."""

    steps: tuple[int, ...]
    """The last step of each line."""
    lost_seconds: float
    """By which they are longer, in all."""
    every: int | None
    """Steps from each to the next, where that is always the same."""


@dataclass(frozen=True)
class Drift:
    """The steps at the end of the run are longer or shorter than those at its begin."""

    first_seconds: float
    last_seconds: float

    @property
    def change(self) -> float:
        """Relative change."""
        return self.last_seconds / self.first_seconds - 1


@dataclass(frozen=True, kw_only=True)
class Steady:
    """The steady part of a log."""

    lines: tuple[LoggedSteps, ...]
    """Without start-up and outliers."""
    seconds: float
    tokens_per_second: float | None
    samples_per_second: float | None
    outliers: Outliers | None
    drift: Drift | None

    def findings(self) -> list[tuple[str, str]]:
        """Outliers and drift as a word and its text each."""
        found = []
        if self.outliers is not None:
            steps = self.outliers.steps
            named = ", ".join(map(str, steps[:_MOST_NAMED])) + (", ..." if len(steps) > _MOST_NAMED else "")
            regular = f", every {self.outliers.every} steps" if self.outliers.every else ""
            lost = duration(1e9 * self.outliers.lost_seconds)
            found.append(("OUTLIERS", f"up to step {named}{regular}: {lost} longer in all"))
        if self.drift is not None:
            first, last = (duration(1e9 * seconds) for seconds in (self.drift.first_seconds, self.drift.last_seconds))
            how = "longer" if self.drift.change > 0 else "shorter"
            found.append(("DRIFT", f"the steps get {100 * abs(self.drift.change):.1f}% {how}, from {first} to {last}"))
        return found


def steady(log: StepLog) -> Steady:
    """The steady part of `log`, which has steps."""
    lines = log.steps[min(len(log.steps) - 1, max(1, round(_START * len(log.steps)))) :]
    times = [line.seconds for line in lines]
    middle = median(times)
    spread = _NORMAL * median(abs(time - middle) for time in times)
    bound = middle + max(_LEAST_OUTLIER * middle, _DEVIATIONS * spread)
    even = tuple(line for line in lines if line.seconds <= bound)
    odd = [line for line in lines if line.seconds > bound]
    return Steady(
        lines=even,
        seconds=median(line.seconds for line in even),
        tokens_per_second=_median([line.tokens_per_second for line in even]),
        samples_per_second=_median([line.samples_per_second for line in even]),
        outliers=_outliers(odd, log.steps, middle) if odd else None,
        drift=_drift([line.seconds for line in even]),
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _outliers(odd: Sequence[LoggedSteps], lines: Sequence[LoggedSteps], middle: float) -> Outliers:
    covered = {after.last: after.last - before.last for before, after in pairwise(lines)}
    steps = tuple(line.last for line in odd)
    gaps = {after - before for before, after in pairwise(steps)}
    lost = sum((line.seconds - middle) * covered.get(line.last, 1) for line in odd)
    return Outliers(steps, lost, gaps.pop() if len(steps) > 2 and len(gaps) == 1 else None)


def _drift(times: Sequence[float]) -> Drift | None:
    """The medians of the first and of the last third, if they differ by more than chance."""
    if len(times) < _FEWEST:
        return None
    third = len(times) // 3
    first, last = median(times[:third]), median(times[-third:])
    spread = max(_NORMAL * median(abs(time - middle) for time in part)
                 for part, middle in ((times[:third], first), (times[-third:], last)))  # fmt: skip
    error = _OF_MEDIAN * spread * (2 / third) ** 0.5
    differs = abs(last - first) > max(_LEAST_DRIFT * first, _ERRORS * error)
    return Drift(first, last) if differs else None

"""Whether a run is worse than another by more than a limit, given the error bars of both.

The change of a metric has the error of the step's change (``compare.Difference.error``): prices that both runs share
cancel. Where the limit lies within that error, no answer is given. Memory is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from phantora.errors import PhantoraError, known_names
from phantora.trace.diff.compare import Change, Difference
from phantora.units import SHARE

Result = Literal["pass", "fail", "inconclusive"]
PASS: Final = "pass"
FAIL: Final = "fail"
INCONCLUSIVE: Final = "inconclusive"
_RATES = {"tokens": ("tokens/s",), "samples": ("samples/s",), "mfu": ("MFU", "HFU"), "energy": ("J/token", "J/step")}
_MEMORY = {"memory": ("allocated", "reserved"), "allocated": ("allocated",), "reserved": ("reserved",)}
"""The worst of these peaks counts."""
METRICS = ("step", *_RATES, *_MEMORY)


@dataclass(frozen=True)
class Limit:
    """Limit of a difference."""

    metric: str
    """One of :data:`METRICS`."""
    share: float


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Verdict on one metric of run b, against run a."""

    DERIVED: ClassVar = ("unit", "text")

    result: Result
    metric: str
    a: float
    """Value of a, in `unit`."""
    b: float
    worse: float
    """Share by which b is worse; negative: better."""
    error: float
    """Error bar of `worse`."""
    limit: float
    failure: str = ""
    """The line that ended run b early; then `result` is ``fail``, whatever the metric."""

    @property
    def unit(self) -> str:
        """Unit of `a` and `b`."""
        if self.metric in _MEMORY:
            return "bytes"
        return {"step": "ns", "mfu": "share", "energy": "joules"}.get(self.metric, f"{self.metric}/s")

    @property
    def text(self) -> str:
        """``step is 3.20 % (+-0.40 %) worse, more than 2 %``."""
        if self.failure:
            return f"the run failed: {self.failure}"
        bar = f" (+-{100 * self.error:.2f} %)" if self.error else ""
        how = f"{100 * abs(self.worse):.2f} %{bar} {'worse' if self.worse > 0 else 'better'}"
        relation = {
            PASS: "within the limit of",
            FAIL: "more than the limit of",
            INCONCLUSIVE: "too uncertain for the limit of",
        }[self.result]
        values = f" ({100 * self.a:.1f} % -> {100 * self.b:.1f} %)" if self.metric == "mfu" else ""
        return f"{self.metric}{values} is {how}, {relation} {100 * self.limit:g} %"


def judge(difference: Difference, limit: Limit) -> Verdict:
    """The verdict on run b. Raises PhantoraError if the logs do not show the metric."""
    if (line := difference.failures.get("a")) is not None:
        raise PhantoraError(
            f"--fail-above needs a base that ran to its end; {difference.path_a} is of a run that failed: {line}"
        )
    change, step = _change(difference, limit.metric), difference.step
    inverse = limit.metric in ("tokens", "samples", "mfu")
    worse, error = 0.0, 0.0
    if change.a and change.b:
        worse = (change.b / change.a - 1) * (-1 if inverse else 1)
    if limit.metric not in _MEMORY and step.a and not difference.equal:
        error = difference.error / step.a
        if limit.metric != "step" and step.change:  # another batch changes the step more than the rate
            error *= min(1.0, abs(worse) * step.a / abs(step.change))
    if worse - error > limit.share or "b" in difference.failures:
        result: Result = FAIL
    else:
        result = PASS if worse <= limit.share and (worse <= 0 or worse + error <= limit.share) else INCONCLUSIVE
    if result == INCONCLUSIVE and difference.same_work and not difference.significant:
        result = PASS  # the same work: what is left is the spread of steps
    return Verdict(
        result=result,
        metric=limit.metric,
        a=change.a,
        b=change.b,
        worse=worse,
        error=error,
        limit=limit.share,
        failure=difference.failures.get("b", ""),
    )


def _change(difference: Difference, metric: str) -> Change:
    if metric == "step":
        if difference.recorded:
            raise PhantoraError("--fail-above: neither trace has steps, so their times are those of the recordings")
        return difference.step
    if metric in _MEMORY:
        found = [peak for peak in difference.peaks if peak.name in _MEMORY[metric]]
        found.sort(key=lambda peak: peak.b / peak.a if peak.a else 1.0)
    else:
        found = [rate for rate in difference.rates if rate.name in _RATES[metric]]
    if not found:
        raise PhantoraError(f"--fail-above: the logs do not show {metric}; choose another metric, as step:2%")
    return found[-1]


def parse_limit(text: str) -> Limit:
    """``"2%"``, ``"0.02"`` or ``"tokens:2%"``. Raises PhantoraError."""
    metric, colon, share = text.strip().rpartition(":")
    limit = SHARE.read(share)
    if colon and metric not in METRICS:
        raise PhantoraError(f"--fail-above {text!r}: unknown metric; {known_names(metric, METRICS)}")
    if limit is None:
        raise PhantoraError(f"--fail-above {text!r} is no share; write it like 2% or tokens:2%")
    return Limit(metric if colon else "step", limit)

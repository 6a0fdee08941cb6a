"""Parts of a simulated step's error bar, from which it can be computed with other constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import hypot
from pathlib import Path

from phantora.trace.analysis.analyze import analyze
from phantora.trace.analysis.annotations import Annotations
from phantora.trace.analysis.hosts import step_on, steps_by_host
from phantora.trace.analysis.uncertainty import COMMON, TOGETHER, Prices, Uncertainty
from phantora.trace.analysis.windows import Window
from phantora.trace.reader import Log, open_log


@dataclass(frozen=True)
class Parts:
    """Headline and parts: ns a step, its printed bar, and the sources of the bar."""

    step_ns: float
    steps: int
    """Number of steady steps."""
    error: float
    error_above: float
    prices: Prices | None
    """None of a run of the time before they were kept."""
    uneven: float
    """Share of the step by which ranks that are no processes may make it longer."""
    by_host: Mapping[float, float]
    """ns of the step by factor on the host's time; empty where other hosts were not tried."""
    spread: tuple[float, float]
    """Factors of the hosts that pass for the simulated one."""

    def bar(
        self, common: float = COMMON, together: float = TOGETHER, spread: tuple[float, float] | None = None
    ) -> tuple[float, float]:
        """The bar with these constants. Without other hosts it is the printed one, of which less is known."""
        if self.prices is None or not self.by_host:
            return self.error, self.error_above
        below, above = (hypot(part, common) for part in self.prices.bar(together))
        fast, slow = (step_on(self.by_host, self.step_ns, f) / self.step_ns for f in spread or self.spread)
        return hypot(below, max(1 - fast, 0.0)), hypot(above, self.uneven, max(slow - 1, 0.0))


class _Steady:
    """Hands the windows of steady steps to an `Uncertainty`."""

    def __init__(self, log: Log) -> None:
        self.uncertainty = Uncertainty(log)

    def begin(self, annotations: Annotations) -> None:
        pass

    def add(self, window: Window) -> None:
        if window.span.steady:
            self.uncertainty.add(window)


def parts_of(path: Path) -> Parts:
    """Raises PhantoraError where the log has no steps."""
    log = open_log(path)
    gathered = _Steady(log)
    report = analyze(log, details=False, also=[gathered])
    top = report.headline
    assert top.error is not None and top.error_above is not None
    steady = {step.number for step in report.steps if not step.note}
    return Parts(
        top.step_time,
        top.steps,
        top.error,
        top.error_above,
        gathered.uncertainty.prices(report.steady),
        (top.uneven or 0.0) / top.step_time,
        steps_by_host(log.trailer, steady),
        tuple(log.trailer.get("host_sensitivity", {}).get("spread", (1.0, 1.0))),
    )

"""Energy of the steps, from the log's power rows, and what it costs.

A power row has what one GPU drew over a stretch of time, by the power model (docs/energy.md). A step has the parts of
rows that lie in it. In a folded run each process counts for all ranks that it stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from phantora.fold.mesh import from_dict
from phantora.trace.analysis.report import Cost, Energy, Headline, Report, Throughput
from phantora.trace.analysis.windows import Window, kind_mask
from phantora.trace.reader import Log

_POWER = kind_mask(("power",))
_HOUR_NS = 3600e9


class EnergySums:
    """Gathers windows of steady steps."""

    def __init__(self, log: Log, ranks: Sequence[int]) -> None:
        fold = from_dict(log.metadata.extra["fold"]) if log.metadata.extra.get("fold") else None
        self._weights = np.array([fold.represented(rank) if fold else 1 for rank in ranks], float)
        self._imported = bool(log.metadata.extra.get("imported"))
        self._drawn = 0.0  # microjoules of the job
        self._time = 0.0  # ns, summed over its ranks

    def add(self, window: Window) -> None:
        """Adds what the GPUs drew in one step."""
        rows = np.flatnonzero(_POWER[window["kind"]])
        if not len(rows):
            return
        rank, start, end = (window[name][rows] for name in ("rank", "start", "end"))
        begin, until = window.span.start[rank], window.span.end[rank]
        inside = np.clip(np.minimum(end, until) - np.maximum(start, begin), 0, None)
        share = inside * window.span.present[rank] / np.maximum(1, end - start)
        self._drawn += float((self._weights[rank] * share * window["value"][rows]).sum())
        present = np.unique(rank)
        stretch = (window.span.end - window.span.start) * window.span.present
        self._time += float((self._weights[present] * stretch[present]).sum())

    def watts(self) -> float | None:
        """W of a GPU on average; None without power rows, or where a trace does not tell the work of kernels, which
        decides what they draw."""
        return self._drawn / self._time * 1e3 if self._time and not self._imported else None

    def report(self, watts: float | None, step_time: float, throughput: Throughput | None) -> Energy | None:
        """Energy of a step of `step_time` ns of GPUs that draw `watts` each."""
        if watts is None:
            return None
        joules = watts * float(self._weights.sum()) * step_time * 1e-9
        tokens = throughput.tokens_per_step if throughput else 0.0
        return Energy(watts, joules, joules / tokens if tokens else None)


def priced(report: Report, price: float | None) -> Report:
    """`report` with the cost of a step at `price` dollars per GPU and hour; None: as it is."""
    if price is None:
        return report
    return replace(report, headline=replace(report.headline, cost=_cost(report, report.headline, price)))


def _cost(report: Report, head: Headline, price: float) -> Cost:
    ranks = int(report.metadata["world_size"])
    gpus = ranks - sum(len(gpu.ranks) - 1 for gpu in report.shared_gpus)
    step = price * gpus * head.step_time / _HOUR_NS
    tokens = head.throughput.tokens_per_step if head.throughput else 0.0
    return Cost(price, step, 1e6 * step / tokens if tokens else None)

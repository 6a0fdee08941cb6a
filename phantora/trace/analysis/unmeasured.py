"""The unmeasured operators with the largest effect on the steps."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from phantora.trace.analysis.annotations import Annotations
from phantora.trace.analysis.grouping import group
from phantora.trace.analysis.report import UnmeasuredOperator
from phantora.trace.analysis.windows import Window, kind_mask
from phantora.trace.reader import Log
from phantora.trace.schema import REAL

MOST = 10
_KNOWN = ("measured", "measured (calibration)", REAL)
_KERNEL = kind_mask(("kernel",))


class UnmeasuredOperators:
    """Adds up the operators of steady steps whose price is not measured, and kernels that no operator launched."""

    def __init__(self, log: Log, annotations: Annotations) -> None:
        self._annotations = annotations
        self._operators, self._names, self._shapes, self._provenances = (
            log.words(c) for c in ("op", "name", "shape", "provenance")
        )
        self._predicted = np.array([word not in _KNOWN for word in self._provenances] + [False])
        self._time: dict[tuple[int, ...], float] = defaultdict(float)
        self._weighted: dict[tuple[int, ...], float] = defaultdict(float)  # error x time
        self._whole = 0.0

    def add(self, window: Window) -> None:
        """Adds the kernels of one step without a measurement, with their time (ns)."""
        own = window.own & ~self._annotations.tuning(window["rank"], window["launch"])
        rows = np.flatnonzero(_KERNEL[window["kind"]] & own)
        time = (window["end"][rows] - window["start"][rows]).astype(np.float64)
        self._whole += float(time.sum())
        predicted = self._predicted[window["provenance"][rows]]
        rows, time = rows[predicted], time[predicted]
        if not len(rows):
            return
        bare = np.where(window["op"][rows] < 0, window["name"][rows], -1)
        keys, place = group([bare, *(window[c][rows] for c in ("op", "shape", "provenance"))])
        sums = np.bincount(place, time), np.bincount(place, time * window["error"][rows])
        for key, total, weighted in zip(keys, *(values.tolist() for values in sums), strict=True):
            self._time[key] += total
            self._weighted[key] += weighted

    def report(self) -> list[UnmeasuredOperator]:
        """The longest first."""
        order = sorted(self._time, key=lambda key: (-self._time[key], key))[:MOST]
        return [
            UnmeasuredOperator(
                operator=self._operators[op] if op >= 0 else self._names[name],
                shape=self._shapes[shape] if shape >= 0 else "",
                provenance=self._provenances[provenance],
                error=_known(self._weighted[key] / self._time[key]),
                time=self._time[key],
                share=self._time[key] / self._whole,
            )
            for key in order
            for name, op, shape, provenance in (key,)
            if self._time[key]
        ]


def _known(error: float) -> float | None:
    return None if np.isnan(error) else error

"""Traffic on the network's links, from the rows of a run with ``--flows``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phantora.trace.analysis.report import LinkReport
from phantora.trace.analysis.windows import Window, code
from phantora.trace.reader import Log

Floats = npt.NDArray[np.float64]

_LINK = code("link")


@dataclass
class _Step:
    """Traffic of one step, by name."""

    time: int
    bytes: Floats
    busy: Floats
    peak: Floats


class Links:
    """Adds up windows of steady steps. A row's rate is constant, so what reaches over a step's border is shared
    by time."""

    def __init__(self, log: Log) -> None:
        self._names = log.words("name")
        self._bandwidth: Floats = np.zeros(len(self._names))
        self._steps: list[_Step] = []  # backwards, as windows come

    def add(self, window: Window) -> None:
        """Adds the bytes and the busy time (ns) of each link in one step."""
        first, last = max(0, window.span.first), window.span.last
        rows = np.flatnonzero(window["kind"] == _LINK)
        start, end = window["start"][rows], window["end"][rows]
        name, moved, bandwidth = (window[column][rows] for column in ("name", "bytes", "value"))
        np.maximum.at(self._bandwidth, name, bandwidth)
        length = np.maximum(end - start, 1)
        inside = np.clip(np.minimum(end, last) - np.maximum(start, first), 0, None) * (moved > 0)
        size = len(self._names)
        step = _Step(last - first, np.zeros(size), np.zeros(size), np.zeros(size))
        np.add.at(step.bytes, name, moved * (inside / length))
        np.add.at(step.busy, name, inside)
        np.maximum.at(step.peak, name, np.where(inside > 0, moved / length * 1e9 / np.maximum(bandwidth, 1), 0))
        self._steps.append(step)

    def report(self) -> list[LinkReport]:
        """Means per step; the most used link first."""
        steps = self._steps
        time = sum(step.time for step in steps)
        found = []
        for i in np.flatnonzero(self._bandwidth).tolist():
            moved, bandwidth = float(sum(step.bytes[i] for step in steps)), float(self._bandwidth[i])
            found.append(
                LinkReport(
                    name=self._names[i],
                    bandwidth=bandwidth,
                    bytes=moved / len(steps),
                    busy=float(sum(step.busy[i] for step in steps)) / len(steps),
                    utilisation=moved / (bandwidth * time * 1e-9) if time else 0.0,
                    peak=float(max(step.peak[i] for step in steps)),
                )
            )
        return sorted(found, key=lambda link: (-link.utilisation, link.name))

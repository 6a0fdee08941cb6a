"""Error of a step's time: the sum of the error bars of its durations.

An operator that is wrong is wrong each time that it runs. Operators of one class and one provenance are partly wrong
together (a table that is off is off for all of its products): their errors add up in one share of the variance, their
squares in the rest; between classes squares add up. The share is small on a GPU with a table. On others the log states
it by class, since errors of what is scaled from another architecture mostly have one sign. Work that overlaps other
work counts with the share of its time that the step is made of. Waits for other ranks are as wrong as the work of
those. What is common to all (clocks, machines that differ) comes on top. Hosts differ most: where the run was simulated
on others (``analysis/hosts.py``), their steps tell; else the bar reaches to what the step takes on the slowest and
fastest hosts measured, where the host then is the limit.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import hypot, sqrt

import numpy as np
import numpy.typing as npt

from phantora.trace.analysis.grouping import group
from phantora.trace.analysis.report import Times
from phantora.trace.analysis.windows import Window, kind_mask
from phantora.trace.reader import Log
from phantora.trace.schema import COMMUNICATION_KINDS, COPY_KINDS, DEVICE_KINDS

Floats = npt.NDArray[np.float64]

# Of durations whose log does not say it (an earlier format, a price without).
_DEFAULT = {
    "measured": 0.05,
    "measured (calibration)": 0.05,
    "fitted": 0.13,
    "interpolated": 0.2,
    "scaled": 0.2,
    "analytic": 0.4,
}
_UNKNOWN = 0.4
_OF_THIS_GPU = ("measured (calibration)", "fitted")  # provenances of prices that no other GPU's decide
_COLLECTIVES = "communication"  # class
# Relative errors of a step that no price has (docs/accuracy.md, Error bars).
COMMON = 0.024
# The share of the variance that different operators of one class and one provenance have in common.
TOGETHER = 0.05
_LEAST = 0.8  # by so much a duration may be too long; larger errors are of durations that may be many times too short
_FASTER_HOST = 0.56  # of the time that a GPU waits for the host: the fastest host measured takes so much less
_SLOWER_HOST = 1.5  # times as long as the default host: the slowest of eleven hosts (validation/holdout.md)

_DEVICE, _COMMUNICATION, _COPY = (kind_mask(kinds) for kinds in (DEVICE_KINDS, COMMUNICATION_KINDS, COPY_KINDS))
_COMPUTE, _TRANSFER, _COPIES = range(3)
_READ = ("kind", "start", "end", "ready", "cls", "provenance", "error", "op", "shape", "name")


@dataclass(frozen=True)
class Prices:
    """Error of a step by wrong prices, as shares of it, downwards and upwards."""

    together: tuple[float, float]
    """Error if operators of one class and one provenance have the same error."""
    alone: tuple[float, float]
    """Error if the errors of all operators are independent."""
    known: tuple[float, float] = (0.0, 0.0)
    """Error of classes for which the log has the share in common; they are in none of the two above."""
    widest: str = ""
    """Class and provenance of the prices that contribute most: ``gemm, scaled``."""

    def bar(self, share: float = TOGETHER) -> tuple[float, float]:
        """`share` of the variance is common to a class and provenance."""
        below, above = (
            sqrt(known**2 + share * both**2 + (1 - share) * each**2)
            for known, both, each in zip(self.known, self.together, self.alone, strict=True)
        )
        return below, above


@dataclass(frozen=True)
class Bar:
    """Relative error bar of a step: the true one lies within it 9 times in 10."""

    below: float
    above: float
    widest: str
    """What contributes most: ``host``, ``fold``, ``data``, or a class of work and its provenance, ``gemm, scaled``."""


class Uncertainty:
    """Adds up windows of steady steps."""

    def __init__(self, log: Log) -> None:
        self._classes, self._provenances = log.words("cls"), log.words("provenance")
        self._default = np.array([_DEFAULT.get(word, _UNKNOWN) for word in self._provenances] + [_UNKNOWN])
        size = (len(self._classes) + 1) * (len(self._provenances) + 1)
        self._errors: Floats = np.zeros((2, 3, size))  # error x ns down and up, by kind of work, class and provenance
        self._alone: dict[tuple[int, ...], Floats] = defaultdict(lambda: np.zeros(2))  # the same of each operator
        self._time: Floats = np.zeros(3)
        stated = log.metadata.extra.get("common_shares", {})
        # Of each class and provenance, after those of none; NaN: not stated.
        self._shares: Floats = np.full((len(self._classes) + 1, len(self._provenances) + 1), np.nan)
        for row, word in enumerate(self._classes, 1):
            self._shares[row] = stated.get(word, stated.get("default", np.nan)) if word != _COLLECTIVES else np.nan
        self._shares[:, [place for place, word in enumerate(self._provenances, 1) if word in _OF_THIS_GPU]] = np.nan
        self._count = 0  # ranks and steps

    def add(self, window: Window) -> None:
        """Adds the prices of one step with their error bars."""
        self._count += int(window.span.present.sum())
        mask = _DEVICE[window["kind"]] & window.own
        kind, start, end, ready, cls, provenance, error, op, shape, name = (window[c][mask] for c in _READ)
        communication = _COMMUNICATION[kind]
        time = (end - np.where(communication, np.clip(ready, start, end), start)).astype(np.float64)
        error = np.where(np.isnan(error), self._default[provenance], error)
        work = np.where(communication, _TRANSFER, np.where(_COPY[kind], _COPIES, _COMPUTE))
        key = (cls.astype(np.int64) + 1) * (len(self._provenances) + 1) + provenance + 1
        size = self._errors.shape[2]
        # Prices of collectives depend on a few constants: they are wrong together.
        texts = (np.where(communication, -1, column) for column in (op, shape, np.where(op < 0, name, -1)))
        operators, place = group([work, key, *texts])
        sums = np.zeros((len(operators), 2))
        for side, part in enumerate((np.minimum(error, _LEAST), error)):
            self._errors[side] += np.bincount(work * size + key, part * time, 3 * size).reshape(3, size)
            sums[:, side] = np.bincount(place, part * time, len(operators))
        for operator, both in zip(operators, sums, strict=True):
            self._alone[operator] += both
        self._time += np.bincount(work, time, 3)

    def report(
        self, steady: Times, host_time: float, hosts: tuple[float, float] | None = None, uneven: float = 0.0
    ) -> Bar | None:
        """Error bar of the step that `steady` describes. `host_time` in ns: what the host works for a step. `hosts`:
        how much shorter and longer it is on other hosts, where the run was simulated on them. `uneven` in ns: by how
        much ranks that are no processes may make it longer."""
        if not steady.time or not self._count:
            return None
        prices = self.prices(steady)
        below, above = (hypot(part, COMMON) for part in prices.bar())
        parts = {prices.widest: max(below, above), "fold": uneven / steady.time}
        above = hypot(above, uneven / steady.time)
        if hosts is not None:
            return _bar(hypot(below, hosts[0]), hypot(above, hosts[1]), parts | {"host": max(hosts)})
        stalls = defaultdict(float, steady.stalls)
        idle = (stalls["host"] + stalls["synchronisation"]) / steady.time
        bound = _SLOWER_HOST * host_time / steady.time - 1
        longer = max((_SLOWER_HOST - 1) * idle, bound - above)
        parts["host"] = max(_FASTER_HOST * idle, longer)
        return _bar(hypot(below, _FASTER_HOST * idle), above + longer, parts)

    def prices(self, steady: Times) -> Prices:
        """Error by prices of the step that `steady` describes."""
        stalls = defaultdict(float, steady.stalls)
        waits = stalls["late rank"] + stalls["pipeline bubble"]
        in_step = np.array([steady.compute + waits, stalls["transfer"], stalls["copy"]])
        # The step's share of a nanosecond of each kind of work.
        weight = np.divide(in_step, self._time * steady.time, out=np.zeros(3), where=self._time > 0)
        together = (self._errors * weight[:, None]).sum(axis=1) ** 2  # by side, class and provenance
        works = np.array([operator[0] for operator in self._alone], np.int64)
        keys = np.array([operator[1] for operator in self._alone], np.int64)
        errors = np.array(list(self._alone.values())).reshape(-1, 2)
        squares = (errors * weight[works, None]) ** 2
        alone = np.stack([np.bincount(keys, side, together.shape[1]) for side in squares.T])
        by_key = self._shares.ravel()
        stated = ~np.isnan(by_key)
        shares = by_key[stated]
        known = (shares * together[:, stated] + (1 - shares) * alone[:, stated]).sum(axis=1)
        rest = (part[:, ~stated].sum(axis=1) for part in (together, alone))
        (low, high), (below, above), (least, most) = (np.sqrt(part).tolist() for part in (known, *rest))
        largest = int(together.max(axis=0).argmax())
        cls, provenance = divmod(largest, len(self._provenances) + 1)
        names = (words[place - 1] for words, place in ((self._classes, cls), (self._provenances, provenance)) if place)
        return Prices((below, above), (least, most), (low, high), ", ".join(names))


def _bar(below: float, above: float, parts: dict[str, float]) -> Bar:
    return Bar(below, above, max(parts, key=lambda name: parts[name]))

"""Collectives: wait and transfer separately, bandwidths, skew, and who came last."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from phantora.trace.analysis.communicators import Group, bus_factor, collective_kind, group_of
from phantora.trace.analysis.grouping import group
from phantora.trace.analysis.report import CollectiveReport, Straggler
from phantora.trace.analysis.windows import Columns, Window, code, kind_mask
from phantora.trace.reader import Log
from phantora.trace.schema import COMMUNICATION_KINDS

_COMMUNICATION, _COLLECTIVE = kind_mask(COMMUNICATION_KINDS), code("collective")
_LATE = 1_000  # ns by which the last rank must be behind to be called late


@dataclass(kw_only=True)
class _Sums:
    count: int = 0
    bytes: float = 0
    wait: float = 0
    transfer: float = 0
    calls: int = 0
    skew: float = 0
    skew_max: float = 0
    last: dict[int, int] = field(default_factory=dict)


class Collectives:
    """Adds up windows. A call belongs to the window in which its kernels end."""

    def __init__(self, ranks: list[int]) -> None:
        self._ranks = ranks
        self._sums: dict[tuple[int, int, int], _Sums] = {}
        self._caused = np.zeros(len(ranks))
        self._waited = np.zeros(len(ranks))
        self._last = np.zeros(len(ranks), np.int64)

    def add(self, window: Window, after: int) -> None:
        """`after`: end of the window before, so that windows of ranks that overlap count a call once."""
        rows = window.columns
        mask = _COMMUNICATION[rows["kind"]] & (rows["end"] > after) & (rows["end"] <= window.span.last)
        rows = {name: values[mask] for name, values in rows.items()}
        if not len(rows["end"]):
            return
        ready = np.clip(rows["ready"], rows["start"], rows["end"])
        wait, transfer = ready - rows["start"], rows["end"] - ready
        np.add.at(self._waited, rows["rank"], wait)
        keys, place = group((rows["comm"], rows["name"], rows["algorithm"]))
        weights = (np.ones(len(place)), rows["bytes"], wait, transfer)
        sums = [np.bincount(place, weight) for weight in weights]
        for i, key in enumerate(keys):
            entry = self._sums.setdefault((key[0], key[1], key[2]), _Sums())
            entry.count += int(sums[0][i])
            entry.bytes += float(sums[1][i])
            entry.wait += float(sums[2][i])
            entry.transfer += float(sums[3][i])
        self._add_skew(rows, ready)

    def _add_skew(self, rows: Columns, ready: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        own = np.flatnonzero((rows["kind"] == _COLLECTIVE) & (rows["seq"] >= 0))
        if not len(own):
            return
        own = own[np.lexsort((rows["start"][own], rows["seq"][own], rows["comm"][own]))]
        comm, seq, start = rows["comm"][own], rows["seq"][own], rows["start"][own]
        fresh = np.flatnonzero(np.append(True, (comm[1:] != comm[:-1]) | (seq[1:] != seq[:-1])))
        stop = np.append(fresh[1:], len(own)) - 1
        skew = start[stop] - start[fresh]
        last = rows["rank"][own][stop]
        known = start[stop] == ready[own][stop]  # else the last rank is not among those reported on
        late = known & (skew > _LATE)
        np.add.at(self._caused, last[late], skew[late])
        np.add.at(self._last, last[late], 1)
        names, algorithms = rows["name"][own][fresh], rows["algorithm"][own][fresh]
        for key, late_by, came_last, is_late in zip(
            zip(comm[fresh].tolist(), names.tolist(), algorithms.tolist(), strict=True),
            skew.tolist(),
            last.tolist(),
            late.tolist(),
            strict=True,
        ):
            entry = self._sums.setdefault(key, _Sums())
            entry.calls += 1
            entry.skew += late_by
            entry.skew_max = max(entry.skew_max, late_by)
            if is_late:
                rank = self._ranks[came_last]
                entry.last[rank] = entry.last.get(rank, 0) + 1

    def report(self, log: Log, known: dict[int, Group]) -> list[CollectiveReport]:
        """Longest sum of wait and transfer first."""
        names, algorithms = log.words("name"), log.words("algorithm")
        found = []
        for (comm, name, algorithm), s in self._sums.items():
            of = group_of(known, comm)
            text = names[name] if name >= 0 else ""
            factor = bus_factor(collective_kind(text), len(of.ranks))
            bandwidth = s.bytes / s.transfer * 1e9 if s.transfer else None
            last = min(s.last, key=lambda rank: (-s.last[rank], rank)) if s.last else -1
            found.append(
                CollectiveReport(
                    comm=comm,
                    group=of.label,
                    name=text,
                    algorithm=algorithms[algorithm] if algorithm >= 0 else "",
                    ranks=len(of.ranks),
                    count=s.count,
                    bytes=s.bytes / s.count,
                    wait=s.wait / s.count,
                    transfer=s.transfer / s.count,
                    algorithm_bandwidth=bandwidth,
                    bus_bandwidth=bandwidth * factor if bandwidth and factor else None,
                    skew=s.skew / s.calls if s.calls else 0.0,
                    skew_max=s.skew_max,
                    last=last,
                    last_share=s.last[last] / s.calls if last >= 0 else 0.0,
                )
            )
        return sorted(found, key=lambda c: (-(c.wait + c.transfer) * c.count, c.comm, c.name))

    def stragglers(self, steps: int) -> list[Straggler]:
        """Every rank, the one that others waited for most first."""
        found = [
            Straggler(rank, float(self._caused[i]) / steps, float(self._waited[i]) / steps, int(self._last[i]))
            for i, rank in enumerate(self._ranks)
        ]
        return sorted(found, key=lambda s: (-s.caused, s.rank))

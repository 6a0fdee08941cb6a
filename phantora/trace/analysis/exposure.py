"""Exposed communication by communicator, collective, and what waited for it."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
import numpy.typing as npt

from phantora.trace.analysis.communicators import Group, group_of
from phantora.trace.analysis.grouping import group
from phantora.trace.analysis.occupancy import Occupancy
from phantora.trace.analysis.report import Exposure
from phantora.trace.analysis.windows import code, kind_mask
from phantora.trace.reader import Log
from phantora.trace.schema import COMMUNICATION_KINDS

Ints = npt.NDArray[np.int64]

_COMMUNICATION = kind_mask(COMMUNICATION_KINDS)
_KERNEL, _COLLECTIVE = code("kernel"), code("collective")
# Operators that prepare others do not show what waits.
_TRIVIAL = re.compile(r"aten::(fill_|zero_|copy_|_to_copy|clone|_foreach_(copy_|zero_)).*")
Key = tuple[int, int, int]  # communicator, name, operator that waited (-1 none)


class Exposures:
    """Adds up over ranks and stretches."""

    def __init__(self, log: Log) -> None:
        words = log.words("op")
        self._trivial = np.array([bool(_TRIVIAL.fullmatch(word)) for word in words] + [False])
        self._sums: dict[Key, list[float]] = {}
        self.late: dict[int, float] = defaultdict(float)
        """ns of exposed waits by the rank that came last; -1 where the log does not tell."""

    def add(self, o: Occupancy) -> None:
        """Adds the exposed communication of one rank's step (ns)."""
        exposed = np.flatnonzero(o.communication & ~o.compute)
        if not len(exposed):
            return
        begin, length = o.sweep.start[exposed], o.sweep.length[exposed]
        waiting = ~o.transfer[exposed]
        device = o.device
        rows = np.flatnonzero(_COMMUNICATION[device["kind"]])
        owner = rows[_active(device["start"][rows], device["end"][rows], begin)]
        kernels = np.flatnonzero((device["kind"] == _KERNEL) & (device["end"] > device["start"]))
        kernels = kernels[~self._trivial[device["op"][kernels]]]
        kernels = kernels[np.argsort(device["start"][kernels], kind="stable")]
        starts = device["start"][kernels]
        following = np.searchsorted(starts, begin)
        # A kernel that starts before the collective's end did not wait for it.
        waited = (following < len(starts)) & (
            np.append(starts, -1)[following] >= np.minimum(device["end"][owner], o.end)
        )
        operators = np.where(device["op"][kernels] >= 0, device["op"][kernels], -1)
        by = np.where(waited, np.append(operators, -1)[following], -1).astype(np.int64)
        name, comm = device["name"][owner].astype(np.int64), device["comm"][owner].astype(np.int64)
        late_rows = np.flatnonzero(waiting & (device["kind"][owner] == _COLLECTIVE))
        lasts, waits = group((device["last_rank"][owner[late_rows]].astype(np.int64),))
        for (last,), time in zip(lasts, np.bincount(waits, length[late_rows], len(lasts)).tolist(), strict=True):
            self.late[last] += time
        keys, place = group((comm, name, by))
        total, late = np.bincount(place, length), np.bincount(place, length * waiting)
        for (c, n, w), time, wait in zip(keys, total.tolist(), late.tolist(), strict=True):
            sums = self._sums.setdefault((c, n, w), [0.0, 0.0])
            sums[0] += time
            sums[1] += wait

    def report(self, log: Log, known: dict[int, Group], stretches: int) -> list[Exposure]:
        """Means over `stretches` (ranks times steps), longest first."""
        names, operators = log.words("name"), log.words("op")
        found = [
            Exposure(
                comm=comm,
                group=group_of(known, comm).label,
                collective=names[name] if name >= 0 else "",
                waited_by=operators[by] if by >= 0 else "",
                exposed=total / stretches,
                late_rank=late / stretches,
            )
            for (comm, name, by), (total, late) in self._sums.items()
        ]
        return sorted(found, key=lambda e: (-e.exposed, e.comm, e.collective, e.waited_by))


def _active(starts: Ints, ends: Ints, at: Ints) -> Ints:
    """For each moment a row that runs then: the latest started, if that one does."""
    order = np.argsort(starts, kind="stable")
    found = order[np.searchsorted(starts[order], at, "right") - 1]
    for i in np.flatnonzero(ends[found] <= at):  # rows inside of other rows: few
        found[i] = np.flatnonzero((starts <= at[i]) & (ends > at[i]))[0]
    return found.astype(np.int64)

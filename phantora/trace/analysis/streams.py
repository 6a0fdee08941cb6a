"""Gaps on each stream, by HolisticTraceAnalysis' definition of idle time: a second view next to the GPU's idle
time by cause (occupancy.py), for who compares with traces of real runs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from phantora.trace.analysis.report import StreamReport
from phantora.trace.analysis.windows import Window, kind_mask
from phantora.trace.schema import DEVICE_KINDS

Ints = npt.NDArray[np.int64]

_DEVICE = kind_mask(DEVICE_KINDS)
_BRIEF = 30_000  # ns: HTA's consecutive_kernel_delay, which it applies to times in microseconds
_BUSY, _HOST, _KERNEL, _OTHER = range(4)


class Streams:
    """Adds up windows, from the last to the first."""

    def __init__(self, ranks: list[int]) -> None:
        self._ranks = ranks
        self._sums: dict[int, Ints] = {}  # by rank position << 32 | stream
        self._following: dict[int, tuple[int, int]] = {}  # start and launch of the stream's next row
        self._reached: Ints = np.full(len(ranks), -2)  # where the window after this one began on each rank

    def add(self, window: Window) -> None:
        """Adds the rows on GPUs of one step."""
        rows = np.flatnonzero(_DEVICE[window["kind"]] & window.own)
        if len(rows):
            self._add(window, rows)
        self._reached = window.span.start

    def _add(self, window: Window, rows: Ints) -> None:
        key = window["rank"][rows].astype(np.int64) << 32 | window["stream"][rows]
        order = np.argsort(key, kind="stable")  # by stream, and there by end
        rows, key = rows[order], key[order]
        start, end, launch = (window[column][rows] for column in ("start", "end", "launch"))
        streams, first = np.unique(key, return_index=True)
        stop = np.append(first[1:], len(key))
        following = np.full((2, len(key)), -1, np.int64)
        following[0, :-1], following[1, :-1] = start[1:], launch[1:]
        for stream, last in zip(streams.tolist(), (stop - 1).tolist(), strict=True):
            adjoins = self._reached[stream >> 32] == window.span.end[stream >> 32]
            following[:, last] = self._following.get(stream, (-1, -1)) if adjoins else (-1, -1)
        gap = np.where(following[0] >= 0, following[0] - end, 0)
        host = following[1] > end
        brief = ~host & (gap < _BRIEF)
        place = np.repeat(np.arange(len(streams)), stop - first)
        parts = (end - start, gap * host, gap * brief, gap * ~(host | brief))
        sums = np.stack([np.bincount(place, part, len(streams)) for part in parts]).astype(np.int64)
        for i, (stream, at) in enumerate(zip(streams.tolist(), first.tolist(), strict=True)):
            self._sums[stream] = self._sums.get(stream, 0) + sums[:, i]
            self._following[stream] = int(start[at]), int(launch[at])

    def report(self, names: dict[tuple[int, int], str]) -> list[StreamReport]:
        """Busy and idle time (ns) of each stream, and what it waited for; `names` by rank and stream."""
        return [
            StreamReport(
                rank=self._ranks[stream >> 32],
                stream=stream & 0xFFFFFFFF,
                name=names.get((self._ranks[stream >> 32], stream & 0xFFFFFFFF), ""),
                busy=int(sums[_BUSY]),
                host_wait=int(sums[_HOST]),
                kernel_wait=int(sums[_KERNEL]),
                other=int(sums[_OTHER]),
            )
            for stream, sums in sorted(self._sums.items())
        ]

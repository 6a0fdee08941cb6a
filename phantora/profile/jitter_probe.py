"""Jitter of this machine's host: equal pieces of Python, timed one after the other for some seconds."""

from __future__ import annotations

import math
import time

import numpy as np
import numpy.typing as npt

from phantora.hardware.types import HostJitter

SECONDS = 6.0
PIECE = 4000  # iterations, some 0.2 ms
PAUSE_NS = 5e6  # a piece that takes so much longer than the median contains a pause


def measure(seconds: float = SECONDS) -> HostJitter:
    """Keeps one processor busy for `seconds`."""
    ends = [time.perf_counter_ns()]
    until = ends[0] + seconds * 1e9
    while ends[-1] < until:
        value = 0
        for number in range(PIECE):
            value += number
        ends.append(time.perf_counter_ns())
    clock = np.asarray(ends, np.int64)
    return jitter_of(clock[1:] - clock[:-1])


def jitter_of(pieces: npt.NDArray[np.int64]) -> HostJitter:
    """Jitter by the times of equal pieces of work that follow each other, in ns.

    A window as long as a pace lasts has, of paces with exponential durations, 2/e of their variance."""
    usual = HostJitter()
    late = pieces - float(np.median(pieces))
    paused = late > PAUSE_NS
    running = pieces[~paused]
    windows = np.add.reduceat(
        running, np.arange(0, len(running), max(1, round(usual.lasts_ns / float(np.median(running)))))
    )
    spread = float(np.std(np.log(windows[:-1]))) / math.sqrt(2 / math.e) if len(windows) > 2 else usual.spread
    return HostJitter(
        spread=round(spread, 3),
        lasts_ns=usual.lasts_ns,
        pauses_per_second=round(int(paused.sum()) / (float(pieces.sum()) * 1e-9), 2),
        pause_ns=float(round(late[paused].mean())) if paused.any() else usual.pause_ns,
        pause_spread=round(float(np.std(np.log(late[paused]))), 2) if paused.sum() > 1 else usual.pause_spread,
        machines_spread=0.0,
        machines_pauses=0.0,
    )

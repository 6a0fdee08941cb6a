"""Noise of one sample of a run: what hosts, GPUs and links do differently from step to step (docs/spread.md).

Hosts: a warp of each rank's recorded clock. Its pace changes at random moments, and now and then the process pauses.
GPUs and links: factors that the engine draws (``sim/engine/noise.h``). Equal seeds give equal samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from phantora.hardware.types import HostJitter, HostProfile
from phantora.sim.engine import library as native
from phantora.trace.recording import Records
from phantora.wire import layout
from phantora.wire.records import answered, fields

# Standard deviation of kernels, as shares. The medians of the interquartile ranges of 650,000 kernels of
# cost/data/h100-sxm.parquet and h200-sxm.parquet are 3 % below 30 us, 2 % from there to 100 us, 1 % to 1 ms. NCCL's
# collectives on 4 H200 have the same spread (90th percentile over median of nccl.parquet: 0.9 % from 64 MiB on).
KERNEL_SHARE = 0.022
KERNEL_FULL_NS = 30e3
# Clock of a GPU that its power limits (``validation.fits.jitter``).
CLOCK_SHARE = 0.015
CLOCK_NS = 20_000_000
# Speed of a GPU as a whole, and the standard deviation of the logarithm of its share between machines: single steps of
# runs that a slower host does not change (``validation.fits.jitter``). The length is assumed.
DRIFT_SHARE = 0.004
DRIFT_MACHINES = 1.4
DRIFT_NS = 100_000_000

_OF_MACHINES = 1 << 40  # stream of random numbers, next to those of samples
_SEGMENTS = 256  # of the warp that are drawn at a time
_NEVER_RESUMED = -1  # of ``asked.resumes``: a request without an answer
_HELPER = layout.Flag["PH_F_HELPER"]
_NO_SLOT = layout.CONSTANTS["PH_NO_SLOT"]
_CLOCKS = (("OP_BEGIN", "start"), ("ANNOTATION", "start"), ("HOST_SPAN", "start"), ("MOVED", "since"))
"""Further host clocks in records: kind and field."""
_Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Machine:
    """A machine that passes for the host: its numbers over those of the host."""

    pace: float = 1.0
    """Host time."""
    spread: float = 1.0
    pauses: float = 1.0
    drift: float = 1.0
    """Over ``DRIFT_SHARE``."""


def machines(host: HostProfile, number: int, seed: int) -> list[Machine]:
    """`number` of the machines that pass for `host`. Nine of ten have a pace within ``host.spread``."""
    normal = NormalDist()
    random = np.random.default_rng((seed, _OF_MACHINES))
    levels = [normal.inv_cdf((place + 0.5) / number) for place in range(number)]
    found = []
    for level, *others in zip(levels, *(random.permutation(levels) for _ in range(3)), strict=True):
        end = host.spread[level > 0]
        deviations = (host.jitter.machines_spread, host.jitter.machines_pauses, DRIFT_MACHINES)
        factors = (math.exp(own * float(each)) for own, each in zip(deviations, others, strict=True))
        found.append(Machine(end ** abs(level / normal.inv_cdf(0.95)), *factors))
    return found


@dataclass(frozen=True)
class Noise:
    """Noise of the sample `sample` of those of `seed`."""

    seed: int
    sample: int
    common: bool = False
    """All ranks have the noise of one: none waits for a slower one."""
    machine: Machine = Machine()

    def of_engine(self) -> native.Noise:
        """Noise of GPUs and links."""
        drawn = np.random.default_rng((self.seed, self.sample)).integers(1, 1 << 63)
        kernels = (KERNEL_SHARE, KERNEL_FULL_NS, CLOCK_SHARE, CLOCK_NS)
        drift = (DRIFT_SHARE * self.machine.drift, DRIFT_NS)
        return native.Noise(int(drawn), int(self.common), *kernels, *drift)

    def of_host(self, rank: int, jitter: HostJitter, ranks: int, scale: float) -> Warp:
        """Noise of `rank`, one of `ranks` on its host. Its recorded time is multiplied by `scale`."""
        stream = 0 if self.common else rank + 1
        own = replace(
            jitter,
            spread=jitter.spread * self.machine.spread,
            pauses_per_second=jitter.pauses_per_second * self.machine.pauses / ranks,
        )
        return Warp(own, scale, np.random.default_rng((self.seed, self.sample, stream)))


class Warp:
    """A rank's host clock with jitter, by its recorded clock. It never goes back."""

    def __init__(self, jitter: HostJitter, scale: float, random: np.random.Generator) -> None:
        self._jitter = jitter
        self._scale = max(scale, 1e-9)  # jitter counts in the time after the scale
        self._random = random
        self._at = np.zeros(1)
        """Recorded clock at the start of each segment; the last starts what is not drawn yet."""
        self._clock = np.zeros(1)
        self._pace = np.empty(0)
        self._paused = np.zeros(1)
        """Length of the pause at the start of each segment, in recorded ns."""

    def __call__(self, times: _Times) -> _Times:
        """Clocks at the recorded `times`, all in ns."""
        if not len(times):
            return times
        latest = int(np.max(times))
        while self._at[-1] <= latest:
            self._extend()
        segment = np.searchsorted(self._at, times, side="right") - 1
        passed = (times - self._at[segment]) * self._pace[segment]
        return np.rint(self._clock[segment] + passed).astype(np.int64)

    def _extend(self) -> None:
        """Draws more segments: a pause, if there is one, comes at the start of its segment."""
        jitter, random = self._jitter, self._random
        lengths = random.exponential(jitter.lasts_ns / self._scale, _SEGMENTS)
        pace = np.exp(jitter.spread * random.standard_normal(_SEGMENTS))
        pauses = random.poisson(lengths * self._scale * jitter.pauses_per_second * 1e-9)
        sigma = jitter.pause_spread
        each = jitter.pause_ns / self._scale * np.exp(sigma * random.standard_normal(pauses.sum()) - sigma**2 / 2)
        paused = np.bincount(np.repeat(np.arange(_SEGMENTS), pauses), weights=each, minlength=_SEGMENTS)
        self._clock[-1] += paused[0]
        self._paused[-1] = paused[0]
        ends = self._clock[-1] + np.cumsum(lengths * pace) + np.concatenate((np.cumsum(paused[1:]), [0.0]))
        ends[-1] += paused[1:].sum()
        self._at = np.concatenate((self._at, self._at[-1] + np.cumsum(lengths)))
        self._clock = np.concatenate((self._clock, ends))
        self._pace = np.concatenate((self._pace, pace))
        self._paused = np.concatenate((self._paused, paused[1:], [0.0]))

    def records(self, recorded: Iterable[Records]) -> Iterator[Records]:
        """The recording with all its host clocks warped."""
        for own in recorded:
            changed = own.copy()
            self._warp(changed, changed["kind"] != layout.Kind.BLOB, "time", changed.dtype)
            asks = (own["kind"] != layout.Kind.BLOB) & (own["slot"] != _NO_SLOT) & (own["flags"] & _HELPER == 0)
            asks &= own.view(answered())["resumes"] != _NEVER_RESUMED
            self._warp(changed, asks, "resumes", answered())
            late = self._late(own["time"][asks], own.view(answered())["resumes"][asks])
            changed.view(answered())["resumes"][asks] -= late
            for kind, name in _CLOCKS:
                self._warp(changed, own["kind"] == getattr(layout.Kind, kind), name, fields(kind))
            yield changed

    def _late(self, times: _Times, resumes: _Times) -> _Times:
        """ns by which a rank notices late that its wait from `times` to `resumes` has ended: a pause began in the wait
        and ends after it. The clock after the wait counts from its end, so its recorded end comes as much earlier."""
        if not len(times):
            return times
        self(np.asarray([np.max(resumes)]))
        first = np.searchsorted(self._at, times, side="right")
        last = np.searchsorted(self._at, resumes, side="right")
        late = np.zeros(len(times))
        for place in np.flatnonzero(last > first):
            pauses = slice(first[place], last[place])
            late[place] = max(0.0, float((self._at[pauses] + self._paused[pauses]).max()) - resumes[place])
        return np.rint(late).astype(np.int64)

    def _warp(self, records: Records, which: npt.NDArray[np.bool_], name: str, kind: np.dtype[np.void]) -> None:
        column = records.view(kind)[name]
        column[which] = self(column[which])

"""The network of the engine's library, driven alone; and a plain reference of what it must compute."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

NEVER = 2**63 - 1


@dataclass(frozen=True)
class Class:
    """`count` equal flows: bytes each, cap in bytes/s each."""

    links: tuple[int, ...]
    bytes: float
    rate: float
    count: int = 1


class Network:
    """sim/engine/network/network.cpp through its C interface."""

    def __init__(self, library: Path, bandwidths: Sequence[float]) -> None:
        self._lib = lib = ctypes.CDLL(str(library))
        p, i32, i64, f64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_double
        for name, result, arguments in (
            ("open", p, []),
            ("close", None, [p]),
            ("link", i32, [p, f64]),
            ("change", None, [p, i32, i64, f64]),
            ("watch", None, [p]),
            ("begin", i32, [p, i64, i32, p, p, p, p, p, i64]),
            ("earliest", i64, [p, i32]),
            ("next", i64, [p]),
            ("step", i32, [p]),
            ("run", i32, [p]),
            ("ended", None, [p, p, p, p]),
            ("rate", f64, [p, i32, i32]),
            ("component", i32, [p, i32, i32]),
            ("busy", i32, [p, i64]),
            ("take_busy", None, [p, p, p, p, p]),
        ):
            function = getattr(lib, f"phn_{name}")
            function.restype, function.argtypes = result, arguments
        self._handle = lib.phn_open()
        for bandwidth in bandwidths:
            lib.phn_link(self._handle, bandwidth)

    def __del__(self) -> None:
        self._lib.phn_close(self._handle)

    def watch(self) -> None:
        self._lib.phn_watch(self._handle)

    def change(self, link: int, time: int, bandwidth: float) -> None:
        self._lib.phn_change(self._handle, link, time, bandwidth)

    def begin(self, start: int, classes: Sequence[Class], tag: int = 0) -> int:
        links = np.array([link for c in classes for link in c.links] or [0], np.int32)
        offsets = np.cumsum([0, *(len(c.links) for c in classes)]).astype(np.int32)
        amounts = np.array([c.bytes for c in classes], np.float64)
        rates = np.array([c.rate for c in classes], np.float64)
        counts = np.array([c.count for c in classes], np.int32)
        return int(
            self._lib.phn_begin(
                self._handle,
                start,
                len(classes),
                links.ctypes.data,
                offsets.ctypes.data,
                amounts.ctypes.data,
                rates.ctypes.data,
                counts.ctypes.data,
                tag,
            )
        )

    def earliest(self, link: int) -> int:
        """No flow over `link` can start before."""
        return int(self._lib.phn_earliest(self._handle, link))

    def next(self) -> int:
        return int(self._lib.phn_next(self._handle))

    def step(self) -> dict[tuple[int, int], int]:
        """Everything of the next moment. Ends by (tag, index of the class)."""
        return self._ended(self._lib.phn_step(self._handle))

    def run(self) -> dict[tuple[int, int], int]:
        return self._ended(self._lib.phn_run(self._handle))

    def _ended(self, count: int) -> dict[tuple[int, int], int]:
        tags, indices, ends = np.empty(count, np.int64), np.empty(count, np.int32), np.empty(count, np.int64)
        self._lib.phn_ended(self._handle, tags.ctypes.data, indices.ctypes.data, ends.ctypes.data)
        return {(t, i): e for t, i, e in zip(tags.tolist(), indices.tolist(), ends.tolist(), strict=True)}

    def rate(self, activity: int, index: int = 0) -> float:
        """Bytes/s of each flow of the class now."""
        return float(self._lib.phn_rate(self._handle, activity, index))

    def component(self, activity: int, index: int = 0) -> int:
        return int(self._lib.phn_component(self._handle, activity, index))

    def busy(self, until: int = NEVER) -> list[tuple[int, int, int, float]]:
        """(link, start, end, bytes) of the stretches that ended before `until`."""
        n = self._lib.phn_busy(self._handle, until)
        links, starts, ends = np.empty(n, np.int32), np.empty(n, np.int64), np.empty(n, np.int64)
        carried = np.empty(n)
        self._lib.phn_take_busy(
            self._handle, links.ctypes.data, starts.ctypes.data, ends.ctypes.data, carried.ctypes.data
        )
        return list(zip(links.tolist(), starts.tolist(), ends.tolist(), carried.tolist(), strict=True))


def fill(bandwidths: Sequence[float], classes: Sequence[Class]) -> list[float]:
    """Max-min fair rates by progressive filling as textbooks have it: raise all rates together, freeze
    the flows of a link that is full and those that reach their cap; until all are frozen."""
    rates = [0.0] * len(classes)
    left = list(bandwidths)
    growing = set(range(len(classes)))
    while growing:
        users = [sum(classes[f].count for f in growing if link in classes[f].links) for link in range(len(left))]
        shares = [left[link] / users[link] if users[link] else math.inf for link in range(len(left))]
        rise = min([*shares, *(classes[f].rate - rates[f] for f in growing)])
        for f in growing:
            rates[f] += rise
            for link in classes[f].links:
                left[link] -= rise * classes[f].count
        full = {link for link, share in enumerate(shares) if share <= rise * (1 + 1e-12)}
        growing -= {
            f
            for f in growing
            if rates[f] >= classes[f].rate * (1 - 1e-12) or any(link in full for link in classes[f].links)
        }
    return rates


def simulate(bandwidths: Sequence[float], starts: Sequence[int], classes: Sequence[Class]) -> list[float]:
    """Ends of classes that start at given ns, with rates from :func:`fill` anew at every event."""
    left = [c.bytes for c in classes]
    ends = [math.nan] * len(classes)
    waiting, running, now = set(range(len(classes))), set[int](), 0.0
    while waiting or running:
        order = sorted(running)
        rates = dict(zip(order, fill(bandwidths, [classes[f] for f in order]), strict=True))
        ends_at = {f: now + left[f] / rates[f] * 1e9 for f in order}
        then = min([*ends_at.values(), *(float(starts[f]) for f in waiting)])
        for f in order:
            left[f] -= rates[f] * (then - now) * 1e-9
            if ends_at[f] <= then * (1 + 1e-15):
                ends[f] = then
                running.remove(f)
        now = then
        running |= {f for f in waiting if starts[f] <= now}
        waiting -= running
    return ends

"""Number of charges of each host cost: counted in a rank under `phantora trace`, not in a real process."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

_PROCESS = ctypes.CDLL(None)
SIMULATED = hasattr(_PROCESS, "ph_charges")
_COUNTERS = {"charges": ("ph_charges", 96), "levels": ("ph_charge_levels", 30)}
"""Counters by name: the function of stub/rank/clock/costs.c, and its number of counters: costs (``api_ns`` of
wire/layout.py), operators and units of code by cold level."""
Counts = dict[str, list[int]]


def counts() -> Counts:
    """The counters now; empty on a real machine."""
    found: Counts = {}
    for name, (function, size) in _COUNTERS.items() if SIMULATED else ():
        read = getattr(_PROCESS, function)
        read.restype = ctypes.POINTER(ctypes.c_uint64)
        found[name] = read()[:size]
    return found


def since(before: Counts) -> dict[str, dict[int, int]]:
    """Growth of each counter since `before`, by its number."""
    return {name: _added(before[name], now) for name, now in counts().items()}


def _added(before: Sequence[int], now: Sequence[int]) -> dict[int, int]:
    return {number: b - a for number, (a, b) in enumerate(zip(before, now, strict=True)) if b > a}

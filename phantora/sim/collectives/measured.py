"""Collectives that the trace of a real run on this machine timed (``phantora trace --calibration``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log2

import numpy as np

from phantora.hardware import MeasuredCollective

REACH = 2.0  # beyond the smallest and the largest measured size by so much: an assumption


class MeasuredCurves:
    """Ratios of measured to modelled durations, by operation, members and size."""

    def __init__(self, curves: Sequence[MeasuredCollective]) -> None:
        self._curves = {(curve.op.upper(), curve.members): curve for curve in curves}

    def ratio(self, op: str, members: int, bytes: int, modelled_ns: Callable[[int], float]) -> float | None:
        """Measured over modelled duration at `bytes`, linear in log(size) between measured sizes; None without a
        measurement near this size. `modelled_ns` gives the model's duration at a size."""
        curve = self._curves.get((op, members))
        if curve is None or not curve.bytes[0] / REACH <= bytes <= curve.bytes[-1] * REACH:
            return None
        ratios = [ns / modelled_ns(size) for size, ns in zip(curve.bytes, curve.ns, strict=True)]
        return float(np.interp(log2(bytes), [log2(size) for size in curve.bytes], ratios))

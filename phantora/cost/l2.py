"""Prices by the state of L2 (stub/rank/memory/l2.c).

**Hits.** Tables hold the time of each operator with its operands in memory (cold) and in L2 (warm). For an operator
that was not measured, the nearest measured operators of the same name decide the ratio: by bytes touched and by time.

**Write-back.** Written lines of L2 go to memory before others take their place, and a reading operator waits for that.
Tables were measured after a copy, which leaves the most written lines. After operators that mostly read, an operator
takes less: a bfloat16 product of 16 x 4,096 x 11,264 takes 41.1 us after a copy and 32.3 us after a sum on an H100
(validation/measurements/2026-11-26-h100/dirty_lines.parquet, the source of the constants).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, log, log2

import numpy as np

from phantora.cost.families import base_name
from phantora.cost.table import Entry, Table
from phantora.cost.tensors import nbytes, on_gpu
from phantora.cost.timing import COLD_CLASSES, own_kernels
from phantora.cost.training_points import Families, PointsCache, TrainingPoints
from phantora.cost.types import L2State, OperatorSignature, Price
from phantora.hardware.types import Gpu
from phantora.wire.shared import L2_MOST_WRITTEN, L2_REACH

NEAREST = 8  # measured operators that count
_SOFTENING = 0.25  # octaves within which they count equally
_FAMILY = "warm"
MOST_SAVED = 0.3
"""Largest share of an operator's time that less write-back saves."""
COMPUTES = frozenset(("gemm", "attention", "convolution"))
"""Classes that compute during memory accesses: they save at most the difference of cold and warm."""


class WarmRatios:
    """Warm time / cold time of the operators of one table."""

    def __init__(self, table: Table, cache: PointsCache | None = None) -> None:
        self._table = table
        self._cache = cache
        self._found: dict[str, TrainingPoints | None] = {}

    def factor(self, signature: OperatorSignature, cls: str, ns: float, l2_hits: float | None) -> float:
        """The factor of the hit share `l2_hits` on the time `ns` that an operator of class `cls` has without one."""
        if l2_hits is None or ns <= 0:
            return 1.0
        points = self._of(base_name(signature.name))
        if points is None:
            return 1.0
        away = np.sqrt(((points.at - np.array(_place(signature, ns))) ** 2).sum(axis=1))
        nearest = np.argsort(away, kind="stable")[:NEAREST]
        weight = (away[nearest] + _SOFTENING) ** -2.0
        warm = exp(float(weight @ points.ratio[nearest] / weight.sum()))  # of cold
        usual = 1.0 if cls in COLD_CLASSES else (1.0 + warm) / 2.0
        return (1.0 - l2_hits + l2_hits * warm) / usual

    def _of(self, name: str) -> TrainingPoints | None:
        if name not in self._found:

            def make() -> Families:
                return _points(self._table.of_operator(name))

            found = self._cache.find((_FAMILY, name), make) if self._cache else make()
            self._found[name] = found.get(_FAMILY)
        return self._found[name]


def write_back_saved_ns(gpu: Gpu, signature: OperatorSignature, price: Price, most: float, l2: L2State) -> float:
    """The ns, at most `most`, by which `price` is shorter with L2 in the state `l2` than after a copy."""
    given = float(sum(nbytes(tensor) for tensor in on_gpu(signature.args)))
    moved = max(price.bytes, given, 1.0)
    if price.cls == "fill":  # it reads nothing
        return 0.0
    read = 0.5 * moved if price.cls == "copy" or signature.work is not None else given
    displaced = min(moved * (1.0 - l2.hits), L2_REACH * gpu.l2_bytes)
    waits = L2_MOST_WRITTEN * displaced * (read / moved) / gpu.hbm_bandwidth * 1e9
    return (1.0 - l2.written) * max(0.0, min(waits, most, MOST_SAVED * sum(price.durations)))


def _place(signature: OperatorSignature, ns: float) -> tuple[float, float]:
    return log2(max(1, sum(nbytes(tensor) for tensor in on_gpu(signature.args)))), log2(ns)


def _points(entries: Iterable[Entry]) -> Families:
    at: list[tuple[float, float]] = []
    ratios: list[float] = []
    for entry in entries:
        kernels = own_kernels(entry)
        cold, warm = sum(kernel.cold for kernel in kernels), sum(kernel.warm for kernel in kernels)
        if cold > 0 and warm > 0:
            at.append(_place(entry.parsed, (cold + warm) / 2.0))
            ratios.append(log(min(1.0, warm / cold)))
    return {_FAMILY: TrainingPoints(np.array(at, float), np.array(ratios, float))} if at else {}

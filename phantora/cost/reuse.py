"""How much faster an operator that was not measured is out of L2.

Tables hold each operator's time out of memory (cold) and out of L2 (warm). The ratio of the two depends on how many
bytes the operator touches, and on how long it takes for them. So it is read off measured operators of the same name
that are alike in both.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, log, log2

import numpy as np

from phantora.cost.families import base_name
from phantora.cost.members import Families, Kept, Members
from phantora.cost.table import Entry, Table
from phantora.cost.tensors import nbytes, on_gpu
from phantora.cost.timing import COLD_CLASSES, own_kernels
from phantora.cost.types import OperatorSignature

NEAREST = 8  # measured operators that count
_SOFTENING = 0.25  # octaves within which they count alike
_FAMILY = "warm"


class Warmth:
    """Of the operators of one table."""

    def __init__(self, table: Table, kept: Kept | None = None) -> None:
        self._table = table
        self._kept = kept
        self._found: dict[str, Members | None] = {}

    def factor(self, signature: OperatorSignature, cls: str, ns: float, held: float | None) -> float:
        """What the time `ns`, which an operator of class `cls` takes where nothing is known of L2, is to be multiplied
        by where L2 holds the share `held` of the operands."""
        if held is None or ns <= 0:
            return 1.0
        members = self._of(base_name(signature.name))
        if members is None:
            return 1.0
        away = np.sqrt(((members.at - np.array(_place(signature, ns))) ** 2).sum(axis=1))
        nearest = np.argsort(away, kind="stable")[:NEAREST]
        weight = (away[nearest] + _SOFTENING) ** -2.0
        warm = exp(float(weight @ members.ratio[nearest] / weight.sum()))  # of cold
        usual = 1.0 if cls in COLD_CLASSES else (1.0 + warm) / 2.0
        return (1.0 - held + held * warm) / usual

    def _of(self, name: str) -> Members | None:
        if name not in self._found:

            def make() -> Families:
                return _members(self._table.of_operator(name))

            found = self._kept.find((_FAMILY, name), make) if self._kept else make()
            self._found[name] = found.get(_FAMILY)
        return self._found[name]


def _place(signature: OperatorSignature, ns: float) -> tuple[float, float]:
    return log2(max(1, sum(nbytes(tensor) for tensor in on_gpu(signature.args)))), log2(ns)


def _members(entries: Iterable[Entry]) -> Families:
    at: list[tuple[float, float]] = []
    ratios: list[float] = []
    for entry in entries:
        kernels = own_kernels(entry)
        cold, warm = sum(kernel.cold for kernel in kernels), sum(kernel.warm for kernel in kernels)
        if cold > 0 and warm > 0:
            at.append(_place(entry.parsed, (cold + warm) / 2.0))
            ratios.append(log(min(1.0, warm / cold)))
    return {_FAMILY: Members(np.array(at, float), np.array(ratios, float))} if at else {}

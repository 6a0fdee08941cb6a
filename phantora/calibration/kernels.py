"""Device times of a real run's operators, and how fast its products are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phantora.cost.traced import TracedOperator, operator_key
from phantora.trace.reader import Log
from phantora.trace.schema import COMMUNICATION_KINDS

Ints = npt.NDArray[np.int64]
_APART = 0.25  # relative spread from which instances of one key are different work
_APART_NS = 1000.0
PRODUCT_NS = 20_000.0
"""Shorter products depend on their start and on L2, not on the clock."""
FEWEST_PRODUCTS = 5
_COLUMNS = ("rank", "link", "start", "end", "op", "shape", "cls")
_DIGITS = 1 << 40  # of an id in the number of an instance: ids are unique in a rank


@dataclass(frozen=True)
class Products:
    """Time of products in a real run over their time in the simulated one."""

    number: int
    """Products of different shapes."""
    ratio: float = 1.0
    """Median."""
    quartiles: tuple[float, float] = (1.0, 1.0)

    @property
    def consistent(self) -> bool:
        """Do all quartiles lie on one side of 1? Only then the clock differs."""
        return self.number >= FEWEST_PRODUCTS and (self.quartiles[0] > 1.0 or self.quartiles[1] < 1.0)


@dataclass(frozen=True)
class _Instances:
    """All instances of an operator with its arguments."""

    cls: str
    ns: Ints
    kernels: Ints


def traced_operators(log: Log) -> tuple[list[TracedOperator], int]:
    """Operators of the log with their device times, and the number of those that are left out because their instances
    differ. Instances next to a collective are left out as well: it slows them."""
    operators, differ = [], 0
    for key, found in sorted(_instances(log).items()):
        low, middle, high = np.percentile(np.maximum(found.ns, 1), (25, 50, 75))
        spread = float(high - low) / 2 / middle
        if spread > _APART and high - low > _APART_NS:
            differ += 1
            continue
        kernels = round(float(np.median(found.kernels)))
        operators.append(TracedOperator(key, float(middle), round(spread, 4), kernels))
    return operators, differ


def compare_products(real: Log, simulated: Log) -> Products:
    """Products of :data:`PRODUCT_NS` and longer that both logs have."""
    ours, theirs = (
        {key: float(np.median(found.ns)) for key, found in _instances(log).items() if found.cls == "gemm"}
        for log in (simulated, real)
    )
    ratios = [theirs[key] / ns for key, ns in ours.items() if key in theirs and ns >= PRODUCT_NS]
    if not ratios:
        return Products(0)
    low, middle, high = np.percentile(ratios, (25, 50, 75)).round(4).tolist()
    return Products(len(ratios), middle, (low, high))


def _instances(log: Log) -> Mapping[str, _Instances]:
    """Instances of each operator, by its key."""
    names, shapes, classes = log.words("op"), log.words("shape"), log.words("cls")
    parts: dict[str, list[Ints]] = {column: [] for column in _COLUMNS}
    for batch in log.batches(_COLUMNS, kinds=("kernel", "memset")):
        linked = (batch["link"] >= 0) & (batch["op"] >= 0) & (batch["shape"] >= 0)
        for column in _COLUMNS:
            parts[column].append(batch[column][linked].astype(np.int64))
    if not parts["rank"]:
        return {}
    rank, link, start, end, op, shape, kind = (np.concatenate(part) for part in parts.values())
    disturbed = _overlap(start, end, rank, log)
    _, first, instance = np.unique(rank * _DIGITS + link, return_index=True, return_inverse=True)
    ns, count = np.bincount(instance, end - start).astype(np.int64), np.bincount(instance)
    alone = np.bincount(instance, disturbed) == 0
    found: dict[str, _Instances] = {}
    pairs, place = np.unique(np.stack([op[first], shape[first]]), axis=1, return_inverse=True)
    for number, (name, text) in enumerate(pairs.T.tolist()):
        own = np.flatnonzero((place.reshape(-1) == number) & alone)
        key = operator_key(names[name], shapes[text])
        if key and len(own):
            before = found.get(key, _Instances(classes[kind[first[own[0]]]], *[np.zeros(0, np.int64)] * 2))
            joined = (np.concatenate([a, b[own]]) for a, b in ((before.ns, ns), (before.kernels, count)))
            found[key] = _Instances(before.cls, *joined)
    return found


def _overlap(start: Ints, end: Ints, rank: Ints, log: Log) -> npt.NDArray[np.bool_]:
    """True for rows that run at the same time as communication of their rank."""
    concurrent = np.zeros(len(start), bool)
    for batch in log.batches(("rank", "start", "end"), kinds=COMMUNICATION_KINDS):
        for number in np.unique(batch["rank"]).tolist():
            of_rank = batch["rank"] == number
            order = np.argsort(batch["end"][of_rank])
            begins, ends = batch["start"][of_rank][order], batch["end"][of_rank][order]
            own = np.flatnonzero(rank == number)
            after = np.minimum(np.searchsorted(ends, start[own], "right"), len(ends) - 1)
            concurrent[own] |= (ends[after] > start[own]) & (begins[after] < end[own])
    return concurrent

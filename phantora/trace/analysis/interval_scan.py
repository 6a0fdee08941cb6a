"""Layers of work on a GPU at each time: one scan over the borders of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass
class Sweep:
    """Stretches that follow each other from begin to end, none of them empty."""

    start: Ints
    end: Ints
    active: list[Mask]
    """For each layer: True if it has a row in the stretch."""

    @property
    def length(self) -> Ints:
        """Length of each interval in ns."""
        return self.end - self.start

    def time(self, mask: Mask) -> int:
        """Sum of the intervals of `mask` in ns."""
        return int(self.length[mask].sum())


def sweep(layers: Sequence[tuple[Ints, Ints]], begin: int, end: int) -> Sweep:
    """Cuts [begin, end) at every border of the layers' intervals (starts, ends; in any order)."""
    positions, changes, owners = [np.array([begin, end], np.int64)], [np.zeros(2, np.int8)], [np.zeros(2, np.int8)]
    for layer, (starts, ends) in enumerate(layers):
        starts, ends = np.maximum(starts, begin), np.minimum(ends, end)
        filled = ends > starts
        count = int(filled.sum())
        positions += [starts[filled], ends[filled]]
        changes += [np.ones(count, np.int8), np.full(count, -1, np.int8)]
        owners.append(np.full(2 * count, layer, np.int8))
    at = np.concatenate(positions)
    order = np.argsort(at, kind="stable")
    at = at[order]
    change, owner = np.concatenate(changes)[order], np.concatenate(owners)[order]
    keep = np.flatnonzero(at[1:] > at[:-1])
    active = [np.cumsum(np.where(owner == layer, change, 0), dtype=np.int64)[keep] > 0 for layer in range(len(layers))]
    return Sweep(at[keep], at[keep + 1], active)

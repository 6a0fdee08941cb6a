"""Rows grouped by several columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def group(keys: Sequence[npt.NDArray[np.integer]]) -> tuple[list[tuple[int, ...]], Ints]:
    """The combinations of `keys` that occur, ascending, and of each row the position of its own.

    The columns are mixed into one number first: sorting that is far cheaper than sorting rows."""
    mixed = np.zeros(len(keys[0]), np.int64)
    tables = []
    for key in keys:
        values, place = np.unique(key, return_inverse=True)
        tables.append(values)
        mixed = mixed * max(1, len(values)) + place.reshape(-1)
    rest, place = np.unique(mixed, return_inverse=True)
    columns = []
    for values in reversed(tables):
        columns.append(values[rest % len(values)].tolist() if len(values) else [])
        rest = rest // max(1, len(values))
    return list(zip(*reversed(columns), strict=True)), place.reshape(-1)

"""Rows grouped by several columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_SMALL = 1 << 16
Ints = npt.NDArray[np.int64]


def group(keys: Sequence[npt.NDArray[np.integer]]) -> tuple[list[tuple[int, ...]], Ints]:
    """The combinations of `keys` that occur, ascending, and of each row the position of its own.

    The columns are mixed into one number first: sorting that is far cheaper than sorting rows."""
    mixed = np.zeros(len(keys[0]), np.int64)
    tables = []
    for key in keys:
        values, place = _numbered(key)
        tables.append(values)
        mixed = mixed * max(1, len(values)) + place
    rest, place = _numbered(mixed)
    columns = []
    for values in reversed(tables):
        columns.append(values[rest % len(values)].tolist() if len(values) else [])
        rest = rest // max(1, len(values))
    return list(zip(*reversed(columns), strict=True)), place


def first_of(keys: Sequence[npt.NDArray[np.integer]]) -> Ints:
    """The first row of each combination of `keys`, in ascending order of the combinations."""
    order = np.lexsort(tuple(reversed(keys)))
    fresh = np.zeros(len(order), bool)
    fresh[:1] = True
    for key in keys:
        fresh[1:] |= key[order[1:]] != key[order[:-1]]
    return order[fresh]


def _numbered(key: npt.NDArray[np.integer]) -> tuple[Ints, Ints]:
    """The values that occur, ascending, and the position of each row's own; values of a small range are not sorted."""
    low, high = (int(np.min(key)), int(np.max(key))) if len(key) else (0, 0)
    if high - low > _SMALL + len(key):
        values, place = np.unique(key, return_inverse=True)
        return values.astype(np.int64), place.reshape(-1)
    offsets = key.astype(np.int64) - low
    occurs = np.zeros(high - low + 1, bool)
    occurs[offsets] = True
    return np.flatnonzero(occurs) + low, (np.cumsum(occurs) - 1)[offsets]

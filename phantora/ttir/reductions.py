"""Reductions and scans of integers: their region, applied to neighbours again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from phantora.ttir.parse import Operation
from phantora.ttir.values import UNKNOWN, Value, plain

Combine = Callable[[list[Value], list[Value]], list[Value]]
"""Takes elements and those that follow them, of each operand."""


def combined(operation: Operation, operands: Sequence[Value], combine: Combine) -> list[Value]:
    """The results of ``tt.reduce`` or ``tt.scan``; all unknown if one is."""
    axis, shape = operation.attribute("axis") or 0, operation.types[0].shape
    values = [np.moveaxis(np.broadcast_to(operand, shape), axis, 0) for operand in operands]
    if operation.name == "tt.reduce":
        found = _reduced(values, combine)
    else:
        turned = slice(None, None, -1 if "reverse = true" in operation.text else 1)
        found = _scanned([value[turned] for value in values], combine)
        found = [value if value is UNKNOWN else np.moveaxis(value[turned], 0, axis) for value in found]
    if any(value is UNKNOWN for value in found):
        return [UNKNOWN] * len(found)
    return [plain(value) for value in found]


def _like(values: list[Value], some: list[Value]) -> list[Value]:
    """A region may give a constant for all elements."""
    return [v if v is UNKNOWN else np.broadcast_to(v, one.shape) for v, one in zip(values, some, strict=True)]


def _reduced(values: list[Value], combine: Combine) -> list[Value]:
    """Pairs of neighbours, until one is left. Sizes are powers of two."""
    while len(values[0]) > 1:
        left, right = [v[0::2] for v in values], [v[1::2] for v in values]
        values = _like(combine(left, right), left)
        if any(v is UNKNOWN for v in values):
            return values
    return [v[0] for v in values]


def _scanned(values: list[Value], combine: Combine) -> list[Value]:
    """Each with what is 1, 2, 4 ... places before it."""
    step = 1
    while step < len(values[0]):
        before, after = [v[:-step] for v in values], [v[step:] for v in values]
        found = _like(combine(before, after), after)
        if any(v is UNKNOWN for v in found):
            return found
        values = [np.concatenate((v[:step], new)) for v, new in zip(values, found, strict=True)]
        step *= 2
    return values

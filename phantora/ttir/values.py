"""Values that decide where a kernel reads and how often: integers, masks and addresses; reals are not followed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from phantora.ttir.parse import Operation


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()
Value = Any  # an int, a NumPy array of int64 or bool, a Tile, or UNKNOWN


@dataclass(frozen=True)
class Tile:
    """A block pointer or descriptor: where a tensor lies, and for block pointers the tile's place."""

    base: Value
    shape: tuple[Value, ...]
    offsets: tuple[Value, ...] = ()


def _divide(a: Value, b: Value) -> Value:
    """Towards zero, as C does; by zero it is 0."""
    safe = np.where(np.equal(b, 0), 1, b)
    found = np.sign(a) * np.sign(safe) * (np.abs(a) // np.abs(safe))
    return np.where(np.equal(b, 0), 0, found)


def _shift_left(a: Value, b: Value) -> Value:
    return np.left_shift(a, np.clip(b, 0, 62))


_BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "addi": np.add,
    "subi": np.subtract,
    "muli": np.multiply,
    "divsi": _divide,
    "divui": _divide,
    "remsi": lambda a, b: a - _divide(a, b) * b,
    "remui": lambda a, b: a - _divide(a, b) * b,
    "floordivsi": lambda a, b: np.floor_divide(a, np.where(np.equal(b, 0), 1, b)),
    "ceildivsi": lambda a, b: -np.floor_divide(-a, np.where(np.equal(b, 0), 1, b)),
    "andi": np.bitwise_and,
    "ori": np.bitwise_or,
    "xori": np.bitwise_xor,
    "shli": _shift_left,
    "shrsi": np.right_shift,
    "shrui": np.right_shift,
    "minsi": np.minimum,
    "maxsi": np.maximum,
    "minui": np.minimum,
    "maxui": np.maximum,
}
_COMPARE: dict[str, Callable[[Value, Value], Value]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "slt": np.less,
    "sle": np.less_equal,
    "sgt": np.greater,
    "sge": np.greater_equal,
    "ult": np.less,
    "ule": np.less_equal,
    "ugt": np.greater,
    "uge": np.greater_equal,
}
_SAME = ("extsi", "extui", "index_cast", "index_castui")


def plain(value: Value) -> Value:
    """NumPy's scalars as Python's: they do not overflow, and are faster."""
    if isinstance(value, np.ndarray):
        return value if value.ndim else value.item()
    return value.item() if isinstance(value, np.generic) else value


def constant(operation: Operation) -> Value:
    """Value of ``arith.constant``: an integer or a mask; other constants are unknown."""
    kind = operation.types[-1] if operation.types else None
    text = operation.text.strip()
    if kind is None:  # true and false have no type
        return {"true": True, "false": False}.get(text.split()[0], UNKNOWN)
    if not kind.element.startswith("i"):
        return UNKNOWN
    found = re.match(r"dense<(-?\d+|true|false)>|(-?\d+)|(true|false)", text)
    if not found:
        return UNKNOWN
    word = found[1] or found[2] or found[3]
    value = word == "true" if word in ("true", "false") else int(word)
    return np.full(kind.shape, value) if kind.shape else value


def integers(operation: Operation, operands: Sequence[Value]) -> Value:
    """An integer operation of ``arith``; UNKNOWN where an operand that decides is."""
    name = operation.name.partition(".")[2]
    if name == "select":
        condition, a, b = operands
        if condition is UNKNOWN:
            return b if a is UNKNOWN else a
        if a is UNKNOWN or b is UNKNOWN or isinstance(a, Tile) or isinstance(b, Tile):
            return (a if condition else b) if isinstance(condition, (bool, int)) else UNKNOWN
        return plain(np.where(condition, a, b))
    if name == "andi" and any(o is UNKNOWN for o in operands) and operation.types[-1].element == "i1":
        return next((o for o in operands if o is not UNKNOWN), UNKNOWN)  # a mask of which half is known: at most that
    if any(o is UNKNOWN or isinstance(o, Tile) for o in operands):
        return UNKNOWN
    if name == "cmpi":
        return plain(_COMPARE[operation.text.split(",")[0].strip()](*operands))
    if name in _BINARY:
        bits = operation.types[-1].bits
        with np.errstate(over="ignore"):
            found = plain(_BINARY[name](*operands))
        return found if bits != 1 or not isinstance(found, (int, np.ndarray)) else (found != 0)
    if name in _SAME:
        return (
            operands[0] + 0
            if isinstance(operands[0], bool)
            else np.asarray(operands[0]).astype(np.int64)
            if (isinstance(operands[0], np.ndarray))
            else operands[0]
        )
    if name == "trunci":
        bits = operation.types[-1].bits
        return operands[0] if bits >= 32 else plain(np.bitwise_and(operands[0], (1 << bits) - 1))
    return UNKNOWN

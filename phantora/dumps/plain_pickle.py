"""Pickles of plain values: dictionaries, lists, tuples, texts, numbers. No class or function is looked up or called.

The standard library's `pickletools` splits a pickle into operations; this module executes those that build plain values
and refuses every other one by its name.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phantora.errors import PhantoraError, cause_of

MOST_BYTES = 1 << 31
_VALUES = frozenset(
    {
        "BINBYTES", "BINBYTES8", "BINFLOAT", "BININT", "BININT1", "BININT2", "BINSTRING", "BINUNICODE", "BINUNICODE8",
        "LONG1", "LONG4", "SHORT_BINBYTES", "SHORT_BINSTRING", "SHORT_BINUNICODE",
    }
)  # fmt: skip
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_SET": set}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = frozenset({"PROTO", "FRAME"})


class _Mark:
    """The begin of the members of a container on the stack."""


def load(path: str | Path) -> Any:
    """The value in the file at `path`.

    Raises PhantoraError for a file that cannot be read, that is no pickle, that is cut, that is larger than
    :data:`MOST_BYTES`, or whose pickle makes anything but plain values.
    """
    try:
        if Path(path).stat().st_size > MOST_BYTES:
            raise PhantoraError(f"{path} has more than {MOST_BYTES >> 30} GiB: no dump of torch is so large")
        data = Path(path).read_bytes()
    except OSError as error:
        raise PhantoraError(f"cannot read {path}: {cause_of(error)}") from error
    try:
        return _value(data, str(path))
    except PhantoraError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise PhantoraError(f"{path} is no complete pickle: {error}") from error


def _value(data: bytes, path: str) -> Any:
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    for operation, argument, _ in pickletools.genops(data):
        name = operation.name
        if name in _VALUES:
            stack.append(argument)
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name == "MARK":
            stack.append(_Mark)
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _TUPLES:
            count = _TUPLES[name]
            stack[-count:] = [tuple(stack[-count:])]
        elif name == "STOP":
            return stack.pop()
        elif name not in _IGNORED:
            _build(name, stack, path)
    raise ValueError("it has no end")


def _build(name: str, stack: list[Any], path: str) -> None:
    """Executes an operation that fills a container."""
    if name == "SETITEM":
        value, key = stack.pop(), stack.pop()
        stack[-1][key] = value
    elif name == "APPEND":
        value = stack.pop()
        stack[-1].append(value)
    elif name in ("SETITEMS", "APPENDS", "ADDITEMS", "TUPLE", "LIST", "DICT"):
        members = _members(stack)
        if name == "SETITEMS":
            stack[-1].update(zip(members[::2], members[1::2], strict=True))
        elif name == "APPENDS":
            stack[-1].extend(members)
        elif name == "ADDITEMS":
            stack[-1].update(members)
        elif name == "DICT":
            stack.append(dict(zip(members[::2], members[1::2], strict=True)))
        else:
            stack.append(tuple(members) if name == "TUPLE" else members)
    else:
        raise PhantoraError(
            f"{path} is refused: its pickle has the operation {name}, which makes more than plain values"
        )


def _members(stack: list[Any]) -> list[Any]:
    """Takes the values above the last mark, and the mark."""
    place = len(stack) - 1
    while stack[place] is not _Mark:
        place -= 1
        if place < 0:
            raise ValueError("a mark is missing")
    members = stack[place + 1 :]
    del stack[place:]
    return members

"""Reading and checking TOML data files: every mistake names file, key and what would be right."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

from phantora.errors import PhantoraError, cause_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")
MOST_PARTS = 64  # of a dotted key: tomllib takes time and memory as their square, 10 s for one of 40,000
_LONG_KEY = re.compile(rb"""(?<![\w."'-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){%d}""" % MOST_PARTS)
LARGEST = 2.0**62
"""Largest number in a data file: values derived from it still fit 64 bits."""


def read(path: Path) -> dict[str, Any]:
    """The table in `path`."""
    try:
        data = path.read_bytes()
        if _LONG_KEY.search(data):
            raise PhantoraError(f"{path} has a key of more than {MOST_PARTS} parts")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise PhantoraError(f"cannot read {path}: {cause_of(error)}") from error
    except (ValueError, RecursionError) as error:  # numbers without end and tables in tables, too
        raise PhantoraError(f"{path} is not valid TOML: {error}") from error


class Place:
    """Place of a value in a file: ``lab.toml:12: fabric.spines``."""

    def __init__(self, path: Path, *keys: str | int) -> None:
        self.path, self.keys = path, keys

    def __truediv__(self, key: str | int) -> Place:
        return Place(self.path, *self.keys, key)

    def __str__(self) -> str:
        line = _line(self.path, self.keys)
        name = ".".join(str(key) for key in self.keys)
        return f"{self.path}{f':{line}' if line else ''}{f': {name}' if name else ''}"


_HEADER = re.compile(r"\s*(\[\[?)\s*([\w.\"'-]+)\s*\]")
_KEY = re.compile(r"\s*([\w.\"'-]+)\s*=")


def _line(path: Path, keys: tuple[str | int, ...]) -> int | None:
    """Number of the line where the value at `keys`, or what encloses it most closely, begins."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    table: tuple[str | int, ...] = ()
    arrays: dict[str, int] = {}
    best, depth = None, 0
    for number, text in enumerate(lines, 1):
        header, key = _HEADER.match(text), _KEY.match(text)
        if header:
            name = header[2]
            table = tuple(name.split("."))
            if header[1] == "[[":
                arrays[name] = arrays.get(name, -1) + 1
                table = (*table, arrays[name])
            found = table
        elif key:
            found = (*table, *key[1].replace('"', "").split("."))
        else:
            continue
        if len(found) > depth and found == keys[: len(found)]:
            best, depth = number, len(found)
    return best


_hints: Callable[[type], dict[str, Any]] = cache(get_type_hints)


def build(cls: type[T], table: dict[str, Any], where: Place) -> T:
    """An instance of dataclass `cls` from `table`; every field without a default must be there, and be
    of its type."""
    hints = _hints(cls)
    values: dict[str, Any] = {}
    known = {field.name for field in fields(cast(Any, cls))}
    unknown = sorted(set(table) - known)
    if unknown:
        raise PhantoraError(
            f"{where / unknown[0]}: unknown key {unknown[0]!r}; known keys are {', '.join(sorted(known))}"
        )
    for field in fields(cast(Any, cls)):
        if field.name not in table:
            if field.default is not MISSING or field.default_factory is not MISSING:
                continue
            raise PhantoraError(f"{where}: key {field.name!r} is missing")
        values[field.name] = _convert(table[field.name], hints[field.name], where / field.name)
    return cls(**values)


def _convert(value: Any, hint: Any, where: Place) -> Any:
    text = str(hint)
    if not isinstance(value, bool):
        if hint is float and isinstance(value, (int, float)):
            return float(_positive(value, where))
        if hint in (int, str) and isinstance(value, hint):
            return _positive(value, where)
        if is_dataclass(hint) and isinstance(value, cast(type, hint)):
            return value
        if is_dataclass(hint) and isinstance(value, dict):
            return build(cast(type, hint), value, where)
    elif hint is bool:
        return value
    if text.startswith("tuple[") and isinstance(value, (list, tuple)):
        arguments = hint.__args__
        if arguments[-1] is Ellipsis:
            return tuple(_convert(item, arguments[0], where / index) for index, item in enumerate(value))
        if len(value) == len(arguments):
            return tuple(_convert(item, kind, where) for item, kind in zip(value, arguments, strict=True))
    if text.startswith("dict[") and isinstance(value, dict):
        return {key: _convert(item, hint.__args__[1], where / key) for key, item in value.items()}
    raise PhantoraError(f"{where} must be {_described(hint)}, not {value!r}")


def _positive(value: Any, where: Place) -> Any:
    if isinstance(value, (int, float)) and not value >= 0:
        raise PhantoraError(f"{where} must not be negative, but is {value!r}")
    if isinstance(value, (int, float)) and value > LARGEST:
        raise PhantoraError(f"{where} must be at most {LARGEST:g}")
    return value


def _described(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    return names.get(hint, f"of the form {hint}")

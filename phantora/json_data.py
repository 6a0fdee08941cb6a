"""Data classes as JSON, and its JSON Schema, both from the types of their fields.

A field of type :data:`Ns` is an attribute ``time`` in Python and the key ``time_ns`` in JSON.
"""

from __future__ import annotations

import enum
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

DRAFT = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True)
class Unit:
    """The unit of the numbers of a field, with which its JSON key ends."""

    name: str


Ns = Annotated[float, Unit("ns")]
IntNs = Annotated[int, Unit("ns")]
Us = Annotated[float, Unit("us")]
Seconds = Annotated[float, Unit("seconds")]
Bytes = Annotated[int, Unit("bytes")]
MeanBytes = Annotated[float, Unit("bytes")]
BytesPerSecond = Annotated[float, Unit("bytes_per_second")]
GbPerSecond = Annotated[float, Unit("gb_per_second")]
Dollars = Annotated[float, Unit("dollars")]

_PLAIN: dict[Any, dict[str, Any]] = {
    int: {"type": "integer"},
    float: {"type": ["number", "null"]},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
    Path: {"type": "string"},
}
"""A number that is not finite is null in JSON."""


def encode(value: Any, *, units: bool = True) -> dict[str, Any]:
    """A data class of JSON's types. Properties that its class names in ``DERIVED`` follow its fields.

    Without `units` keys are the names of the fields, as the pages read them."""
    found: dict[str, Any] = _encoder(type(value), units)(value)
    return found


_ENCODERS: dict[tuple[Any, bool], Callable[[Any], Any]] = {}


def _encoder(kind: Any, units: bool) -> Callable[[Any], Any]:
    if (kind, units) not in _ENCODERS:
        _ENCODERS[kind, units] = _new_encoder(kind, units)
    return _ENCODERS[kind, units]


def _new_encoder(kind: Any, units: bool) -> Callable[[Any], Any]:
    members = [(name, key if units else name, _convert(hint, units)) for name, key, hint in _members(kind)]

    def convert(value: Any) -> dict[str, Any]:
        return {key: inner(getattr(value, name)) for name, key, inner in members}

    return convert


def _convert(hint: Any, units: bool) -> Callable[[Any], Any]:
    """A function that makes JSON of a value of type `hint`. It encodes a data class by its actual class, subclasses
    too."""
    hint = _plain(hint)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if is_dataclass(hint):
        return lambda value: _encoder(type(value), units)(value)
    if origin in (typing.Union, types.UnionType):
        (some,) = [_convert(one, units) for one in inner if one is not type(None)] or [_value]
        return lambda value: None if value is None else some(value)
    if origin is tuple and inner[-1] is not Ellipsis:
        each = [_convert(one, units) for one in inner]
        return lambda value: [convert(item) for convert, item in zip(each, value, strict=True)]
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        of_value = _convert(inner[1], units)
        return lambda value: {str(key): of_value(item) for key, item in value.items()}
    if origin is not None and isinstance(origin, type) and issubclass(origin, Sequence):
        of_item = _convert(inner[0], units)
        return lambda value: [of_item(item) for item in value]
    return _value


def _value(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, enum.Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def _plain(hint: Any) -> Any:
    """`hint` without its unit."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def _members(kind: Any) -> list[tuple[str, str, Any]]:
    """Name, JSON key and type of a data class's fields and of the properties in its ``DERIVED``."""
    hints = typing.get_type_hints(kind, include_extras=True)
    found = [(field.name, hints[field.name]) for field in fields(kind)]
    for name in getattr(kind, "DERIVED", ()):
        found.append((name, typing.get_type_hints(getattr(kind, name).fget, include_extras=True)["return"]))
    return [(name, _key(name, hint), hint) for name, hint in found]


def _key(name: str, hint: Any) -> str:
    units = "_".join(dict.fromkeys(_units(hint)))
    return name if not units or name.endswith(units) else f"{name}_{units}"


def _units(hint: Any) -> list[str]:
    inner = typing.get_args(hint)
    if typing.get_origin(hint) is Annotated:
        return [each.name for each in inner[1:] if isinstance(each, Unit)]
    return [unit for each in inner for unit in _units(each)]


class Schemas:
    """JSON Schemas of data classes, with the definitions that they refer to."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, Any]] = {}

    def whole(self, title: str, top: dict[str, Any]) -> dict[str, Any]:
        """The schema `top` of a document."""
        return {"$schema": DRAFT, "title": title, **top, "$defs": dict(sorted(self._found.items()))}

    def of(self, hint: Any) -> dict[str, Any]:
        """The schema of a type. Raises TypeError for one that has none."""
        hint = _plain(hint)
        if hint in _PLAIN:
            return _PLAIN[hint]
        if is_dataclass(hint):
            return self._reference(hint)
        origin, inner = typing.get_origin(hint), typing.get_args(hint)
        if origin is typing.Literal:
            return {"enum": list(inner)}
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return {"enum": [each.value for each in hint]}
        if origin in (typing.Union, types.UnionType):
            return {"anyOf": [self.of(one) for one in inner]}
        if origin is tuple and inner[-1] is not Ellipsis:
            return {"type": "array", "prefixItems": [self.of(one) for one in inner], "items": False}
        if origin is not None and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(inner[1])}
        if origin is not None and issubclass(origin, Sequence):
            return {"type": "array", "items": self.of(inner[0])}
        raise TypeError(f"no schema for {hint}")

    def _reference(self, kind: Any) -> dict[str, Any]:
        name = kind.__name__
        if name not in self._found:
            self._found[name] = {}
            self._found[name] = self.object(kind)
        return {"$ref": f"#/$defs/{name}"}

    def object(self, kind: Any, *, required: bool = True, more: bool = False) -> dict[str, Any]:
        """The schema of a data class: all keys are there, if `required`, and no others, unless `more`."""
        properties = {key: self.of(hint) for _, key, hint in _members(kind)}
        found: dict[str, Any] = {"type": "object", "properties": properties}
        return {
            **found,
            **({"required": list(properties)} if required else {}),
            **({} if more else {"additionalProperties": False}),
        }

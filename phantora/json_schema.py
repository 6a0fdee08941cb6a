"""JSON Schemas of what commands print with ``--json``, made from the data classes behind it.

Times are ns and sizes bytes, unless a key names another unit.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from phantora.result import RunReport
from phantora.trace.analysis.report import Report
from phantora.trace.diff.compare import Difference
from phantora.trace.diff.verdict import Verdict

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_PLAIN: dict[Any, dict[str, Any]] = {
    int: {"type": "integer"}, float: {"type": ["number", "null"]}, str: {"type": "string"}, bool: {"type": "boolean"},
    type(None): {"type": "null"}, Any: {},
}  # fmt: skip
"""A number that is not finite is null in JSON."""


class _Definitions:
    """The data classes met so far, by name."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = {}

    def of(self, kind: Any) -> dict[str, Any]:
        """The schema of a type."""
        if kind in _PLAIN:
            return _PLAIN[kind]
        if is_dataclass(kind):
            return self._reference(kind)
        origin, inner = typing.get_origin(kind), typing.get_args(kind)
        if origin in (typing.Union, types.UnionType):
            return {"anyOf": [self.of(one) for one in inner]}
        if origin is tuple and inner[-1] is not Ellipsis:
            return {"type": "array", "prefixItems": [self.of(one) for one in inner], "items": False}
        if origin is not None and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(inner[1])}
        if origin is not None and issubclass(origin, Sequence):
            return {"type": "array", "items": self.of(inner[0])}
        raise TypeError(f"no schema for {kind}")

    def _reference(self, kind: Any) -> dict[str, Any]:
        name = kind.__name__
        if name not in self.found:
            self.found[name] = {}
            self.found[name] = self.object(kind)
        return {"$ref": f"#/$defs/{name}"}

    def object(self, kind: Any, required: bool = True) -> dict[str, Any]:
        """The schema of a data class: all fields are there, if `required`."""
        hints = typing.get_type_hints(kind)
        names = [field.name for field in fields(kind)]
        properties = {name: self.of(hints[name]) for name in names}
        return {"type": "object", "properties": properties, **({"required": names} if required else {})}


def schemas() -> dict[str, dict[str, Any]]:
    """By command."""
    return {"analyze": _analyze(), "diff": _diff(), "trace": _trace()}


def _whole(title: str, top: dict[str, Any], definitions: _Definitions) -> dict[str, Any]:
    return {"$schema": _DRAFT, "title": title, **top, "$defs": dict(sorted(definitions.found.items()))}


def _analyze() -> dict[str, Any]:
    definitions = _Definitions()
    return _whole("phantora analyze --json", definitions.object(Report), definitions)


def _diff() -> dict[str, Any]:
    definitions = _Definitions()
    top = definitions.object(Difference)
    top["properties"]["ratio"] = {"type": ["number", "null"]}
    verdict = definitions.object(Verdict)
    verdict["properties"]["text"] = {"type": "string"}
    verdict["properties"]["result"] = {"enum": ["pass", "fail", "inconclusive"]}
    top["properties"]["verdict"] = verdict
    return _whole("phantora diff A B --json", top, definitions)


def _trace() -> dict[str, Any]:
    definitions = _Definitions()
    top = definitions.object(RunReport, required=False)
    top["properties"] |= {"reason": {"type": "string"}, "analysis": definitions.of(Report)}
    top["required"] = ["status", "ranks", "reason"]
    return _whole("phantora trace --json, phantora replay --json", top, definitions)

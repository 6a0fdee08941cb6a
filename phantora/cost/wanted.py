"""Operators that a run used, as a file: the list that ``phantora profile`` measures.

JSON lines. The first names the format; each other one is an operator's signature as the tracer
wrote it, whether its library call multiplies float32 as ``tf32``, and what the run made
of it: class, provenance, error bar, instances and ns in all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import orjson

from phantora.errors import PhantoraError, cause_of
from phantora.ttir import store

KIND = "phantora operators"
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One operator that a run used."""

    signature: str
    compute: str = ""
    operator: str = ""
    """Name of the operator and, in `shape`, its arguments as people read them."""
    shape: str = ""
    cls: str = ""
    provenance: str = ""
    error: float | None = None
    """Relative error bar of its price."""
    count: int = 0
    ns: int = 0
    """Time of all instances, of all ranks."""
    tuning: bool = False
    """A candidate that an autotuner tried: no part of the program."""
    kernel: dict[str, Any] | None = None
    """A Triton kernel's IR and how it is compiled, so that it can be measured on another machine."""


def with_kernel(entry: Wanted) -> Wanted:
    """`entry` with its kernel's IR, if it is a Triton kernel whose IR this machine has kept."""
    ir = orjson.loads(entry.signature).get("ir")
    return replace(entry, kernel=store.kept(ir)) if ir else entry


def write_wanted(path: Path, wanted: Iterable[Wanted], **about: Any) -> None:
    """Writes `wanted` to `path`; `about` is their source (GPU, torch)."""
    lines = [{"kind": KIND, "version": VERSION, **about}, *(asdict(entry) for entry in wanted)]
    try:
        path.write_bytes(b"\n".join(orjson.dumps(line) for line in lines) + b"\n")
    except OSError as error:
        raise PhantoraError(f"cannot write {path}: {cause_of(error)}; choose another file") from error


def read_wanted(path: Path) -> list[Wanted]:
    """The operators in `path`. Raises PhantoraError for a file of another kind or a broken line."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise PhantoraError(f"cannot read {path}: {cause_of(error)}") from error
    head = _line(path, 1, lines[0]) if lines else {}
    if head.get("kind") != KIND:
        raise PhantoraError(f"{path} is no list of operators; `phantora trace --missing FILE` writes one")
    if head.get("version") != VERSION:
        raise PhantoraError(f"{path} has version {head.get('version')} of the format, and {VERSION} is known")
    return [
        wanted_from(_line(path, number, line), f"{path}, line {number}")
        for number, line in enumerate(lines[1:], start=2)
    ]


def wanted_from(table: dict[str, Any], where: str) -> Wanted:
    """An entry from its JSON object; `where` names it in errors."""
    known = {f.name for f in fields(Wanted)}
    if not isinstance(table.get("signature"), str):
        raise PhantoraError(f"{where}: an operator without signature; write the file anew")
    return Wanted(**{key: value for key, value in table.items() if key in known})


def _line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        table = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise PhantoraError(f"{path}, line {number} is not JSON ({error}); write the file anew") from error
    if not isinstance(table, dict):
        raise PhantoraError(f"{path}, line {number} is no object; write the file anew")
    return table

"""Tables of measured kernel times: one Parquet file per GPU, a row per kernel of an operator.

What a table was measured with (GPU, driver, torch, CUDA, cuDNN) stands in its metadata. Nothing in a
table is evaluated; one of another version, of another kind or with broken contents is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from phantora.cost.parse import parse_signature
from phantora.cost.tensors import contiguous_strides
from phantora.cost.types import OperatorSignature, TensorSpec
from phantora.errors import PhantoraError

FORMAT = 1
SUFFIX = ".parquet"
_KEY = b"phantora.kernel_times"
_TEXT = pa.dictionary(pa.int32(), pa.utf8())
_SCHEMA = pa.schema([
    ("signature", _TEXT),
    ("compute", _TEXT),
    ("position", pa.int16()),
    ("name", _TEXT),
    ("kind", _TEXT),
    ("grid", pa.list_(pa.int32(), 3)),
    ("block", pa.list_(pa.int32(), 3)),
    ("cold", pa.int64()),
    ("warm", pa.int64()),
    ("spread", pa.float32()),
    ("clock_mhz", pa.int16()),
])  # fmt: skip
# Numbers that choose another kernel or another amount of work; others stand in a key as "x".
_TELLING = frozenset((-1.0, 0.0, 0.5, 1.0, 2.0, 3.0))


@dataclass(frozen=True)
class TimedKernel:
    """One kernel, copy or memset of a measured operator; times in ns (see phantora.profile.measure)."""

    name: str
    kind: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cold: int
    warm: int
    spread: float


@dataclass(frozen=True)
class Entry:
    """A measured operator."""

    signature: str
    compute: str
    kernels: tuple[TimedKernel, ...]
    clock_mhz: int = 0

    @property
    def parsed(self) -> OperatorSignature:
        return _parsed(self.signature)


@dataclass(frozen=True)
class Table:
    """All entries of a file by :func:`signature_key`, and what they were measured with."""

    about: Mapping[str, str]
    entries: Mapping[str, Entry]
    path: str = ""

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())

    def __len__(self) -> int:
        return len(self.entries)


@lru_cache(maxsize=1 << 16)
def _parsed(text: str) -> OperatorSignature:
    return parse_signature(text)


def signature_key(signature: OperatorSignature, compute: str = "") -> str:
    """One text for all signatures that are the same work: forward or backward, whatever the numbers.

    Strides of extents of one are left out, and numbers that are neither sizes nor small.
    """
    return f"{signature.name}({','.join(_key(value) for value in signature.args)}){compute}"


def _key(value: Any) -> str:
    if isinstance(value, TensorSpec):
        place = "" if value.device == "cuda" else f"@{value.device}"
        return f"{value.dtype}[{','.join(map(str, value.shape))}]{_layout(value)}{place}"
    if isinstance(value, tuple):
        return f"({';'.join(_runs([_key(item) for item in value]))})"
    if isinstance(value, float):
        return f"{value:g}" if value in _TELLING else "x"
    return str(value)


def _layout(spec: TensorSpec) -> str:
    """Strides, unless the tensor is contiguous."""
    dense = contiguous_strides(spec.shape)
    if all(n == 1 or s == d for n, s, d in zip(spec.shape, spec.stride, dense, strict=False)):
        return ""
    return "/" + ",".join(str(s) if n != 1 else "-" for n, s in zip(spec.shape, spec.stride, strict=False))


def _runs(texts: list[str]) -> Iterator[str]:
    """Equal neighbours as one, with their number."""
    start = 0
    for end in range(1, len(texts) + 1):
        if end == len(texts) or texts[end] != texts[start]:
            yield texts[start] if end == start + 1 else f"{end - start}*{texts[start]}"
            start = end


def write_table(path: Path, about: Mapping[str, str], entries: Iterable[Entry]) -> None:
    """Writes a table in one move: a reader sees the old file or the new one."""
    columns: dict[str, list[Any]] = {name: [] for name in _SCHEMA.names}
    for entry in entries:
        for position, kernel in enumerate(entry.kernels):
            values = (
                entry.signature, entry.compute, position, kernel.name, kernel.kind, kernel.grid, kernel.block,
                kernel.cold, kernel.warm, kernel.spread, entry.clock_mhz,
            )  # fmt: skip
            for name, value in zip(_SCHEMA.names, values, strict=True):
                columns[name].append(value)
    text = orjson.dumps({"format": FORMAT, **about})
    table = pa.table(columns, schema=_SCHEMA).replace_schema_metadata({_KEY: text})
    part = path.with_name(path.name + ".part")
    try:
        pq.write_table(table, part, compression="zstd", compression_level=15)
        part.replace(path)
    except OSError as error:
        raise PhantoraError(f"cannot write {path}: {error}; choose another file") from error


def read_table(path: Path) -> Table:
    """The table in `path`. Raises PhantoraError with the file and the reason when it is not one."""
    try:
        table = pq.read_table(path)
    except FileNotFoundError as error:
        raise PhantoraError(f"{path}: there is no such table of kernel times") from error
    except (OSError, pa.ArrowException) as error:
        raise PhantoraError(f"{path} is no table of kernel times: {_first_line(error)}") from error
    about = _about(path, table.schema)
    wrong = [field.name for field in _SCHEMA if field.name not in table.schema.names]
    if wrong:
        raise PhantoraError(f"{path}: the table lacks the columns {', '.join(wrong)}; measure it anew")
    try:
        rows = table.select(_SCHEMA.names).cast(_SCHEMA).to_pylist()
        return Table(about, _entries(rows), str(path))
    except (pa.ArrowException, PhantoraError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise PhantoraError(f"{path}: broken contents ({_first_line(error)}); measure it anew") from error


def _about(path: Path, schema: pa.Schema) -> dict[str, str]:
    text = (schema.metadata or {}).get(_KEY)
    if text is None:
        raise PhantoraError(f"{path} is a Parquet file, but no table of kernel times")
    try:
        about = orjson.loads(text)
        version = about.pop("format")
    except (orjson.JSONDecodeError, KeyError, AttributeError, TypeError) as error:
        raise PhantoraError(f"{path}: the table does not say what it was measured with; measure it anew") from error
    if version != FORMAT:
        raise PhantoraError(f"{path} has version {version} of the format, and {FORMAT} is known; measure it anew")
    return {str(key): str(value) for key, value in about.items()}


def _entries(rows: list[dict[str, Any]]) -> dict[str, Entry]:
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if row["cold"] < 0 or row["warm"] < 0:
            raise ValueError("a negative time")
        found.setdefault((row["signature"], row["compute"]), []).append(row)
    entries: dict[str, Entry] = {}
    for (signature, compute), kernels in found.items():
        kernels.sort(key=lambda row: row["position"])
        timed = tuple(
            TimedKernel(r["name"], r["kind"], tuple(r["grid"]), tuple(r["block"]), r["cold"], r["warm"], r["spread"])  # type: ignore[arg-type, unused-ignore]
            for r in kernels
        )
        entry = Entry(signature, compute, timed, kernels[0]["clock_mhz"])
        entries[signature_key(parse_signature(signature), compute)] = entry
    return entries


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]

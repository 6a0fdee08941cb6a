"""Tables of measured kernel times: one Parquet file per GPU, a row per kernel of an operator.

What a table was measured with (GPU, driver, torch, CUDA, cuDNN) stands in its metadata. Nothing in a
table is evaluated; one of another version, of another kind or with broken contents is refused.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from phantora.cost.parquet import read_columns
from phantora.cost.parse import parse_signature
from phantora.cost.table_rows import Rows, base_of, cached, indexed
from phantora.cost.tensors import contiguous_strides
from phantora.cost.types import OperatorSignature, TensorSpec
from phantora.errors import PhantoraError

FORMAT = 1
SUFFIX = ".parquet"
_KEY = b"phantora.kernel_times"
_TEXT = pa.dictionary(pa.int32(), pa.utf8())
_SCHEMA = pa.schema(
    [
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
    ]
)
# Columns that repeat values are dictionaries; the bytes of times are stored by their place, which compresses best.
_STORED: dict[str, Any] = {
    "compression": "brotli",
    "compression_level": 11,
    "use_dictionary": ["signature", "compute", "position", "name", "kind", "block.list.element", "spread", "clock_mhz"],
    "column_encoding": {"cold": "BYTE_STREAM_SPLIT", "warm": "BYTE_STREAM_SPLIT"},
}
_OF_ENTRIES = ("signature", "compute", "clock_mhz")
_OF_KERNELS = ("name", "kind", "grid", "block", "cold", "warm", "spread")
# Numbers that choose another kernel or another amount of work; others stand in a key as "x".
_TELLING = frozenset((-1.0, 0.0, 0.5, 1.0, 2.0, 3.0))


@dataclass(frozen=True, kw_only=True)
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
        """The operator with its arguments. Raises ValueError if the text is none."""
        return _parsed(self.signature)


class Table:
    """Entries by :func:`signature_key`, and what they were measured with. Entries are made when asked for."""

    def __init__(
        self,
        about: Mapping[str, str],
        entries: Iterable[Entry] = (),
        path: str = "",
        digest: str = "",
        rows: Rows | None = None,
    ) -> None:
        self.about = dict(about)
        self.path = path
        self.digest = digest  # SHA-256 of the file; empty for a table that is in none
        self._made = {signature_key(e.parsed, e.compute): e for e in entries}
        self._added = list(self._made)
        self._rows = rows

    def __len__(self) -> int:
        return len(self.keys())

    def __iter__(self) -> Iterator[Entry]:
        for key in self.keys():
            entry = self.get(key)
            assert entry is not None
            yield entry

    def keys(self) -> list[str]:
        """Signatures of all operators in the table, in its order."""
        return list(dict.fromkeys((*(self._rows.keys() if self._rows else ()), *self._added)))

    def get(self, key: str) -> Entry | None:
        """The entry of this very signature."""
        if key not in self._made:
            found = self._rows.find(key) if self._rows else None
            if self._rows is None or found is None:
                return None
            self._made[key] = _entry(self._rows, *found)
        return self._made[key]

    def of_operator(self, name: str) -> list[Entry]:
        """Entries of the operator with base name `name`, whatever its overload."""
        keys = self._rows.keys_of(name) if self._rows else []
        added = [key for key in self._added if base_of(key) == name]
        with _collector_paused():
            found = [self.get(key) for key in dict.fromkeys((*keys, *added))]
        return [entry for entry in found if entry is not None]


def _entry(rows: Rows, first: int, end: int) -> Entry:
    """The entry in these rows."""
    columns = rows.values(first, end, _OF_KERNELS)
    kernels = tuple(
        TimedKernel(name=name, kind=kind, grid=tuple(grid), block=tuple(block), cold=cold, warm=warm, spread=spread)
        for name, kind, grid, block, cold, warm, spread in zip(*columns, strict=True)
    )
    signature, compute, clock_mhz = (values[0] for values in rows.values(first, first + 1, _OF_ENTRIES))
    return Entry(signature, compute, kernels, clock_mhz)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pauses garbage collection. The objects stay, and repeated scans of them would take as long as their creation."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@lru_cache(maxsize=1 << 16)
def _parsed(text: str) -> OperatorSignature:
    return parse_signature(text)


def signature_key(signature: OperatorSignature, compute: str = "") -> str:
    """One text for all signatures that are the same work: forward or backward, whatever the numbers.

    Strides of extents of one are left out, and numbers that are neither sizes nor small.
    """
    kernel = f"@{signature.ir}[{','.join(map(str, signature.grid))}]" if signature.ir else ""
    return f"{signature.name}{kernel}({','.join(_key(value) for value in signature.args)}){compute}"


def _key(value: Any) -> str:
    if isinstance(value, TensorSpec):
        place = "" if value.device == "cuda" else f"@{value.device}"
        sparse = f"{value.layout}{value.stored}" if value.layout else ""
        return f"{sparse}{value.dtype}[{','.join(map(str, value.shape))}]{_layout(value)}{place}"
    if isinstance(value, tuple):
        return f"({';'.join(_runs(_keys(value)))})"
    if isinstance(value, float):
        return f"{value:g}" if value in _TELLING else "x"
    return str(value)


def _keys(values: tuple[Any, ...]) -> list[str]:
    """Key of each value. The rest of a long list is one value many times: it is read once."""
    keys: list[str] = []
    for at, value in enumerate(values):
        keys.append(keys[-1] if at and value is values[at - 1] else _key(value))
    return keys


def _layout(spec: TensorSpec) -> str:
    """Strides, unless the tensor is contiguous."""
    dense = contiguous_strides(spec.shape)
    if spec.stride == dense or all(n == 1 or s == d for n, s, d in zip(spec.shape, spec.stride, dense, strict=False)):
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
    """Writes a table in one move: a reader sees the old file or the new one. A spread has two decimals, the precision
    of the least error bar."""
    columns: dict[str, list[Any]] = {name: [] for name in _SCHEMA.names}
    for entry in entries:
        for position, kernel in enumerate(entry.kernels):
            values = (
                entry.signature,
                entry.compute,
                position,
                kernel.name,
                kernel.kind,
                kernel.grid,
                kernel.block,
                kernel.cold,
                kernel.warm,
                round(kernel.spread, 2),
                entry.clock_mhz,
            )
            for name, value in zip(_SCHEMA.names, values, strict=True):
                columns[name].append(value)
    text = orjson.dumps({"format": FORMAT, **about})
    table = pa.table(columns, schema=_SCHEMA).replace_schema_metadata({_KEY: text})
    part = path.with_name(path.name + ".part")
    try:
        pq.write_table(table, part, **_STORED)
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise PhantoraError(f"cannot write {path}: {error}; choose another file") from error


def table_gpu(path: Path) -> str:
    """The product name of the GPU that the table in `path` was measured on. Raises as :func:`read_table`."""
    return table_about(path).get("gpu", "")


def table_about(path: Path) -> dict[str, str]:
    """Versions with which the table in `path` was measured: gpu, driver, torch, cuda, cudnn. Raises as
    :func:`read_table`."""
    try:
        return _about(path, pq.read_schema(path))
    except (OSError, pa.ArrowException) as error:
        raise PhantoraError(f"{path} is no table of kernel times: {_first_line(error)}") from error


def read_table(path: Path) -> Table:
    """The table in `path`. Raises PhantoraError with the file and the reason when it is not one."""
    try:
        contents = path.read_bytes()
    except FileNotFoundError as error:
        raise PhantoraError(f"{path}: no table of kernel times at this path") from error
    except OSError as error:
        raise PhantoraError(f"{path} is no table of kernel times: {_first_line(error)}") from error
    digest = hashlib.sha256(contents).hexdigest()
    rows = cached(digest, lambda: _checked_rows(path, contents))
    return Table(_about(path, rows.schema), (), str(path), digest, Rows(rows))


def _checked_rows(path: Path, contents: bytes) -> pa.Table:
    """The rows of the file `path`, indexed. Raises as :func:`read_table`."""
    try:
        table = read_columns(pa.BufferReader(contents), _SCHEMA.names)
    except (OSError, pa.ArrowException, ValueError) as error:
        raise PhantoraError(f"{path} is no table of kernel times: {_first_line(error)}") from error
    _about(path, table.schema)
    wrong = [field.name for field in _SCHEMA if field.name not in table.schema.names]
    if wrong:
        raise PhantoraError(f"{path}: the table has no columns {', '.join(wrong)}; measure it anew")
    try:
        rows = table.select(_SCHEMA.names).cast(_SCHEMA.with_metadata(table.schema.metadata))
        if len(rows) and (pc.min(rows["cold"]).as_py() < 0 or pc.min(rows["warm"]).as_py() < 0):
            raise ValueError("a negative time")
        with _collector_paused():
            rows = indexed(rows, lambda signature, compute: signature_key(parse_signature(signature), compute))
        Rows(rows)
        return rows
    except (pa.ArrowException, PhantoraError, TypeError, ValueError) as error:
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


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]

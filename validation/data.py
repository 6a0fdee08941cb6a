"""Reads the measurements: files below ``validation/measurements``, JSON lines (also ``.xz``) or Parquet."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent
MEASUREMENTS = HERE / "measurements"


def rows(name: str | Path) -> list[dict[str, Any]]:
    """Rows of a file, in order. `name` is relative to ``validation/measurements``. Absent fields are left out.

    Raises OSError for a file that cannot be read.
    """
    path = MEASUREMENTS / name
    if path.suffix == ".parquet":
        found: list[dict[str, Any]] = [_present(row) for row in pq.read_table(path).to_pylist()]
        return found
    text = lzma.decompress(path.read_bytes()).decode() if path.suffix == ".xz" else path.read_text()
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def write(path: Path, content: Iterable[Mapping[str, Any]]) -> None:
    """Writes rows as Parquet; a field that a row does not have is null."""
    listed = list(content)
    names = dict.fromkeys(name for row in listed for name in row)
    table = pa.table({name: [row.get(name) for row in listed] for name in names})
    pq.write_table(table, path, compression="zstd", compression_level=19)


def _present(value: Any) -> Any:
    """Without nulls: Parquet fills them in for fields that a row does not have."""
    if isinstance(value, dict):
        return {key: _present(item) for key, item in value.items() if item is not None}
    return [_present(item) for item in value] if isinstance(value, list) else value

"""Reads the measurements: files below ``validation/measurements``, JSON lines or Parquet."""

from __future__ import annotations

import json
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
        found = pq.read_table(path).to_pylist()
        return [{key: value for key, value in row.items() if value is not None} for row in found]
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]


def write(path: Path, content: Iterable[Mapping[str, Any]]) -> None:
    """Writes rows as Parquet; a field that a row does not have is null."""
    listed = list(content)
    names = dict.fromkeys(name for row in listed for name in row)
    table = pa.table({name: [row.get(name) for row in listed] for name in names})
    pq.write_table(table, path, compression="zstd", compression_level=19)

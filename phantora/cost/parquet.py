"""Reads untrusted Parquet files within bounds.

Repeated values are stored once, so a file of some kilobytes may unpack to any number of rows. The sizes in its metadata
are checked first, and only the requested columns are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

MOST_ROWS = 4 << 20  # ten times the largest table, h100-sxm.parquet
MOST_BYTES = 512 << 20  # unpacked, all columns; ten times the same table


def read_columns(source: Path | pa.BufferReader, columns: Sequence[str]) -> pa.Table:
    """Reads those of `columns` that the file has. Raises ArrowException or OSError for a file that is no Parquet file,
    and ValueError for one that is too large."""
    # Without a thread: a run may be allowed few, and our tables are small.
    with pq.ParquetFile(source, memory_map=False, pre_buffer=False) as file:
        about = file.metadata
        if about.num_rows > MOST_ROWS:
            raise ValueError(f"{about.num_rows} rows, and {MOST_ROWS} are the most")
        unpacked = 0
        for group in range(about.num_row_groups):
            chunks = about.row_group(group)
            if not 0 <= chunks.num_rows <= MOST_ROWS:
                raise ValueError(f"a group of {chunks.num_rows} rows")
            unpacked += max(0, chunks.total_byte_size)  # a column's own sizes may end the process: pyarrow 26
        if unpacked > MOST_BYTES:
            raise ValueError(f"it takes {unpacked >> 20} MiB, and {MOST_BYTES >> 20} are the most")
        known = [name for name in columns if name in file.schema_arrow.names]
        table = file.read(columns=known, use_threads=False)
    table.validate(full=True)  # indices beyond their dictionary
    return table

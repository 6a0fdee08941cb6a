"""The rows of a log as one Parquet file, with the log's columns; metadata of the run under the key ``phantora``."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from phantora.trace.export.files import replacing
from phantora.trace.export.selection import Progress, Selection
from phantora.trace.export.selector import Selector
from phantora.trace.reader import Log


def write(log: Log, path: str, selection: Selection, progress: Progress | None = None) -> list[str]:
    """Writes the selected rows to `path`."""
    selector = Selector(log, selection, progress)
    raw = enumerate(log.record_batches())
    with replacing(path) as file, pq.ParquetWriter(file, log.schema, compression="zstd") as writer:
        for chosen in selector.batches(("kind", "rank")):
            batch = next(batch for index, batch in raw if index == chosen.index)
            writer.write_batch(batch.take(pa.array(chosen.rows)))
    return [path]

"""Tables of operators as the trace of a real run timed them: by operator, shapes, dtypes and scalars.

`phantora calibrate` writes them next to a calibration file. Times include the L2 hits and the clock of that run.
Strides are unknown: an operator whose times differ is left out by the writer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from phantora.cost.families import base_name
from phantora.cost.parquet import read_columns
from phantora.errors import PhantoraError

_ABOUT = b"phantora.traced_operators"
_SCHEMA = pa.schema([("key", pa.utf8()), ("ns", pa.float64()), ("spread", pa.float64()), ("kernels", pa.int64())])


@dataclass(frozen=True)
class TracedOperator:
    """Device time of one operator with its arguments."""

    key: str
    """As :func:`operator_key` writes it."""
    ns: float
    """Sum of its kernels, median over its instances."""
    spread: float
    """Relative: half of the distance between the quartiles."""
    kernels: int
    """Kernels and memsets of an instance."""


def operator_key(name: str, arguments: str) -> str:
    """`name` is an operator's, `arguments` the text of ``cost.parse.signature_text``. Overload, outputs and the device
    of scalars are dropped: traces of torch.profiler do not have them. Empty where tensors of a list are unknown."""
    reported = arguments.partition(" -> ")[0].replace("@cpu", "")
    return "" if "()" in reported or "…" in reported else f"{base_name(name)}({reported})"


def write_traced(path: Path, gpu: str, operators: Iterable[TracedOperator]) -> None:
    """Writes the table of the GPU with product name `gpu`. Raises PhantoraError."""
    table = pa.Table.from_pylist([asdict(operator) for operator in operators], schema=_SCHEMA)
    try:
        pq.write_table(table.replace_schema_metadata({_ABOUT: orjson.dumps({"gpu": gpu})}), path, compression="zstd")
    except OSError as error:
        raise PhantoraError(f"cannot write {path}: {error}; choose another file") from error


def read_traced(path: Path) -> dict[str, TracedOperator]:
    """The operators in `path` by key. Raises PhantoraError for another kind of file."""
    try:
        if _ABOUT not in (pq.read_schema(path).metadata or {}):
            raise ValueError("it is another table")
        table = read_columns(path, _SCHEMA.names).cast(_SCHEMA)
        rows = [TracedOperator(**row) for row in table.to_pylist()]
    except FileNotFoundError as error:
        raise PhantoraError(f"{path} is missing; `phantora calibrate` writes it next to its file") from error
    except (OSError, pa.ArrowException, TypeError, ValueError) as error:
        raise PhantoraError(f"{path} is no table of `phantora calibrate`: {str(error)[:200]}") from error
    if any(not row.ns > 0 or row.spread < 0 for row in rows):
        raise PhantoraError(f"{path}: times must be above 0; calibrate again")
    return {row.key: row for row in rows}

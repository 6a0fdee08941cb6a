"""Writes the event log: the engine's rows in, Arrow record batches out, column by column."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from phantora.errors import PhantoraError, cause_of
from phantora.outputs import is_unnamed
from phantora.trace.locking import lock_for_writing, was_deleted
from phantora.trace.recording import Chunk, RecordingWriter
from phantora.trace.schema import BATCH_ROWS, COPY_NAMES, KINDS, TRAILER_KEY, RunMetadata, Tables, arrow_schema
from phantora.wire import layout
from phantora.wire.layout import opaque

ROW = layout.dtype(layout.Row)

Rows = npt.NDArray[np.void]
Ints = npt.NDArray[np.int64]
T = TypeVar("T")

_KERNEL = layout.RowKind.KERNEL
# Names of rows that come without one, by (row kind, sub kind).
_IMPLIED: dict[int, tuple[str, ...]] = {
    layout.RowKind.MEMCPY: tuple(COPY_NAMES[member] for member in layout.Copy.names()),
    layout.RowKind.MEMSET: ("Memset (Device)",),
    layout.RowKind.RECORD: ("cudaEventRecord",),
    layout.RowKind.WAIT: ("cudaStreamWaitEvent",),
    layout.RowKind.MEMORY: tuple(member.lower() for member in layout.Mem.names()),
    layout.RowKind.HOST_FUNC: ("cudaLaunchHostFunc",),
    layout.RowKind.POWER: ("power",),
}
_IMPLIES = np.array([code in _IMPLIED for code in range(len(KINDS))])


class _Dictionary:
    """A text column: words in order of first appearance in the log, whatever their ids are."""

    def __init__(self) -> None:
        # Arrow can extend a dictionary of a file only when it holds something: begin with "".
        self._index: dict[str, int] = {"": 0}
        self._array = pa.array([""], pa.utf8())
        self._of_key = np.full(1024, -2, np.int32)  # key -> index, -1 no text, -2 not seen yet

    def encode(self, keys: Ints, text: Callable[[int], str]) -> pa.DictionaryArray:
        """`keys` are ids, -1 for none; ``text(id)`` is asked once per id; "" is stored as null."""
        top = int(keys.max(initial=-1)) + 1
        if top > len(self._of_key):
            grown = np.full(max(top, 2 * len(self._of_key)), -2, np.int32)
            grown[: len(self._of_key)] = self._of_key
            self._of_key = grown
        indices = np.where(keys < 0, np.int32(-1), self._of_key[keys])
        unseen = np.flatnonzero(indices == -2)
        if len(unseen):
            new, first = np.unique(keys[unseen], return_index=True)
            for key in new[np.argsort(first)].tolist():
                word = text(key)
                self._of_key[key] = self._index.setdefault(word, len(self._index)) if word else -1
            indices[unseen] = self._of_key[keys[unseen]]
            if len(self._index) != len(self._array):
                self._array = pa.array(list(self._index), pa.utf8())
        missing = indices < 0
        indices[missing] = 0  # behind a null too, readers want an index that exists
        return pa.DictionaryArray.from_arrays(pa.array(indices, mask=missing), self._array, safe=False)


class LogWriter:
    """Writes rows to `path`. ``append`` takes rows in their final order, in pieces of any size.

    Only whole batches reach the file before ``close``; a file whose writer was killed is read up
    to its last whole batch. While it is written the file is locked against other writers.
    """

    def __init__(self, path: str | os.PathLike[str], metadata: RunMetadata, tables: Tables) -> None:
        self.path = os.fspath(path)
        self.rows = 0
        self.tables = tables
        self._schema = arrow_schema(metadata)
        self._pending = np.empty(BATCH_ROWS, ROW)
        self._filled = 0
        self._written = 0
        self._last_end = np.iinfo(np.int64).min
        self._closed = False
        self._recording = RecordingWriter(os.path.dirname(os.path.abspath(self.path)))
        self._kinds = pa.array(KINDS, pa.utf8())
        self._text = {column: _Dictionary() for column in ("name", "op", "shape", "cls", "provenance", "algorithm")}
        self._prices = np.empty(0, [("flops", "<f8"), ("bytes", "<i8"), ("main", "<i4"), ("error", "<f4")])
        try:
            self._lock = lock_for_writing(self.path)
        except OSError as error:
            raise self._not_created(error) from error
        # Threads of Arrow's: where the system allows some of them only, pyarrow 26 ends the process with SIGSEGV.
        options = pa.ipc.IpcWriteOptions(
            emit_dictionary_deltas=True,
            use_threads=False,
            compression=None if is_unnamed(self._lock.fileno()) else "zstd",  # one in memory is read once
        )
        try:
            self._sink = pa.OSFile(f"/proc/self/fd/{self._lock.fileno()}", "wb")  # the very file that is locked
            self._file = pa.ipc.new_file(self._sink, self._schema, options=options)
        except OSError as error:
            self._lock.close()
            raise self._not_created(error) from error

    def _not_created(self, error: OSError) -> PhantoraError:
        return PhantoraError(f"{self.path}: cannot create the log: {cause_of(error)}; name another place with -o")

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._closed:
            self.close({})

    def append(self, rows: Rows) -> None:
        """Adds `rows` (``wire.layout.Row``), which must go on in order of `end`."""
        if not len(rows):
            return
        ends = rows["end"]
        if ends[0] < self._last_end or bool(np.any(ends[1:] < ends[:-1])):
            raise ValueError("rows of the log must come in order of their end")
        self._last_end = ends[-1]
        self.rows += len(rows)
        while len(rows):
            if not self._filled and len(rows) >= BATCH_ROWS:
                self._write(rows[:BATCH_ROWS])
                rows = rows[BATCH_ROWS:]
                continue
            taken = min(BATCH_ROWS - self._filled, len(rows))
            opaque(self._pending)[self._filled : self._filled + taken] = opaque(rows[:taken])
            self._filled += taken
            rows = rows[taken:]
            if self._filled == BATCH_ROWS:
                self._write(self._pending)
                self._filled = 0

    def record(self, rank: int, records: Rows) -> None:
        """Adds `records` (``wire.layout.Record``) to those of `rank`; they follow the last row."""
        self._guard(lambda: self._recording.add(rank, records))

    def recording(self) -> list[Chunk]:
        """The recording; nothing can be recorded afterwards."""
        return list(self._recording.finish())

    def end_rows(self) -> None:
        """Writes the rows of the batch in making; the file can be read, and no rows follow."""
        if self._filled:
            self._write(self._pending[: self._filled])
            self._filled = 0
        self._guard(self._sink.flush)

    def close(self, trailer: dict[str, Any]) -> None:
        """Writes the rest, the trailer and the footer. Nothing can be written afterwards."""
        if self._closed:
            return
        self.end_rows()
        empty = self._encode(self._pending[:0])

        def write_metadata(metadata: dict[bytes, bytes]) -> None:
            self._guard(lambda: self._file.write_batch(empty, custom_metadata=metadata))

        chunks = 0
        recording = self._recording.finish()
        while (chunk := self._guard(lambda: next(recording, None))) is not None:
            write_metadata(chunk.metadata())
            chunks += 1
        counts = {"rows": self.rows} | ({"recording_batches": chunks} if chunks else {})
        text = json.dumps({**trailer, **counts}, sort_keys=True)
        write_metadata({TRAILER_KEY: text.encode()})
        self._guard(self._file.close)
        self._guard(self._sink.close)
        self._closed = True
        deleted = was_deleted(self._lock)
        self._lock.close()
        if deleted:
            raise PhantoraError(
                f"{self.path}: was deleted while the run wrote it, and its {self.rows} rows are lost; run it again"
            )

    def _write(self, rows: Rows) -> None:
        batch = self._encode(rows)
        self._guard(lambda: self._file.write_batch(batch))
        self._written += len(rows)

    def _guard(self, action: Callable[[], T]) -> T:
        if self._closed:
            raise ValueError(f"the log {self.path} is closed")
        try:
            return action()
        except OSError as error:
            # What lies on the disk is a log without a footer, which readers accept: leave it so.
            self._closed = True
            self._lock.close()
            raise PhantoraError(
                f"{self.path}: cannot write the log: {cause_of(error)}; its first {self._written} rows can be "
                "read; make room, or name another place with -o"
            ) from error

    # ------------------------------------------------------------------ columns

    def _encode(self, rows: Rows) -> pa.RecordBatch:
        kind, part = rows["kind"], rows["part"]
        sig, price = rows["sig"].astype(np.int64), rows["price"].astype(np.int64)
        self._learn_prices()
        signatures, prices = self.tables.signatures, self.tables.prices
        text = self._text
        main = price >= 0
        error = np.full(len(rows), np.nan, np.float32)
        error[main] = self._prices["error"][price[main]]
        flops, moved = np.zeros(len(rows)), rows["bytes"].copy()
        if main.any():
            main[main] = self._prices["main"][price[main]] == part[main]
            flops[main] = self._prices["flops"][price[main]]
            bare = main & (kind == _KERNEL) & (moved == 0)
            moved[bare] = self._prices["bytes"][price[bare]]
        columns: dict[str, pa.Array] = {
            "kind": pa.DictionaryArray.from_arrays(pa.array(kind.astype(np.int8)), self._kinds, safe=False),
            "name": text["name"].encode(self._name_keys(rows, sig), self._name),
            "op": text["op"].encode(sig, lambda i: signatures[i][0]),
            "shape": text["shape"].encode(sig, lambda i: signatures[i][1]),
            "cls": text["cls"].encode(price, lambda i: prices[i].cls),
            "provenance": text["provenance"].encode(price, lambda i: prices[i].provenance),
            "algorithm": text["algorithm"].encode(price, lambda i: prices[i].algorithm),
            "bytes": pa.array(moved),
            "flops": pa.array(flops),
            "error": pa.array(error, mask=np.isnan(error)),
        }
        for column in self._schema.names:
            if column not in columns:
                columns[column] = pa.array(np.ascontiguousarray(rows[column]))
        return pa.record_batch([columns[name] for name in self._schema.names], schema=self._schema)

    def _learn_prices(self) -> None:
        known, table = len(self._prices), self.tables.prices
        if len(table) > known:
            new = [
                (row.flops, round(row.bytes), row.main_part, np.nan if row.error is None else row.error)
                for row in table[known:]
            ]
            self._prices = np.concatenate([self._prices, np.array(new, self._prices.dtype)])

    # A row's name is named by one key: 3 * name id; without a name 3 * (256 * kind + sub) + 1 if its
    # kind implies one, else 3 * signature + 2 (the operator).
    @staticmethod
    def _name_keys(rows: Rows, sig: Ints) -> Ints:
        name = rows["name"].astype(np.int64)
        kind = rows["kind"].astype(np.int64)
        implied = np.where(_IMPLIES[kind], 3 * (256 * kind + rows["sub"]) + 1, -1)
        return np.where(name >= 0, 3 * name, np.where(implied >= 0, implied, np.where(sig >= 0, 3 * sig + 2, -1)))

    def _name(self, key: int) -> str:
        value, source = divmod(key, 3)
        if source == 0:
            return kernel_name(self.tables.names[value])
        if source == 2:
            return self.tables.signatures[value][0]
        kind, sub = divmod(value, 256)
        implied = _IMPLIED[kind]
        return implied[sub if sub < len(implied) else 0]


def kernel_name(text: str) -> str:
    """The name to show for `text`: a library call's JSON description is known by its name."""
    if not text.startswith("{"):
        return text
    try:
        call = json.loads(text)
    except ValueError:
        return text
    if not isinstance(call, dict) or "lib" not in call:
        return text
    return str(call.get("name") or f"{call['lib']}::{call.get('call', 'kernel')}")

"""Reads the event log a batch at a time, forwards or backwards, whole or cut short.

A log whose run was killed has no footer. Its batches are found by walking its messages from the
beginning; each is then decoded on its own, so such a log offers all that a whole one does.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from phantora.errors import PhantoraError, Reason, cause_of
from phantora.result import failure_line
from phantora.trace import arrow_sizes
from phantora.trace.other_files import instead
from phantora.trace.prefetch import prefetched
from phantora.trace.recording import Chunk
from phantora.trace.schema import (
    ADDED,
    COLUMNS,
    FIELDS,
    KIND_CODE,
    KINDS,
    LOG_FORMAT,
    METADATA_KEY,
    OOM,
    READABLE,
    TEXT_COLUMNS,
    TRAILER_KEY,
    RunMetadata,
)

_MAGIC = b"ARROW1\x00\x00"
_OPERATOR = frozenset(("signature", "operator", "shape", "provenance", "error", "ns"))  # of phantora.cost.wanted.Wanted
_RENAMED = {"modelled": "fitted", "roofline": "analytic"}  # provenances of earlier logs
_BROKEN = (pa.ArrowException, OSError, ValueError, IndexError, KeyError)  # what Arrow raises for damaged data
_MOST_KEPT = 384 << 20  # bytes of columns that are kept unpacked
_MOST_RANKS = 1 << 24  # tables of ranks shall not take all memory
Array = npt.NDArray[Any]


class _TooLarge(ValueError):
    """A file that would take more memory than a log does."""


@dataclass
class Batch:
    """Some columns of one record batch after filtering. Text columns hold indices into
    ``Log.words(column)``, -1 for none; the kind column holds indices into ``schema.KINDS``."""

    index: int
    columns: dict[str, Array]
    rows: Array
    """Positions of these rows in the unfiltered batch."""

    def __getitem__(self, column: str) -> Array:
        return self.columns[column]

    def __len__(self) -> int:
        return len(self.rows)


class _WholeFile:
    """A log with its footer."""

    def __init__(self, source: pa.MemoryMappedFile, reader: pa.RecordBatchFileReader) -> None:
        self._source = source
        self._readers: dict[tuple[int, ...], pa.RecordBatchFileReader] = {}
        self.schema = reader.schema
        self.count = reader.num_record_batches
        blocks = arrow_sizes.blocks(source)
        _limit_words(source, blocks.dictionaries)
        self._places = blocks.batches
        self.trailer = b""
        if self.count:
            _limit_rows(self, self.count - 1)
            last = reader.get_batch_with_custom_metadata(self.count - 1)
            found = last.custom_metadata and last.custom_metadata.get(TRAILER_KEY)
            if found:
                self.trailer = found
                self.count -= 1

    def unpacked(self, index: int) -> int:
        return arrow_sizes.unpacked_size(self._source, self._places[index])

    def metadata(self, index: int) -> dict[bytes, bytes]:
        _limit_rows(self, index)
        reader = pa.ipc.open_file(self._source, options=_of_columns((0,)))
        return dict(reader.get_batch_with_custom_metadata(index).custom_metadata or {})

    def batch(self, index: int, fields: tuple[int, ...]) -> pa.RecordBatch:
        reader = self._readers.get(fields)
        if reader is None:
            reader = self._readers[fields] = pa.ipc.open_file(self._source, options=_of_columns(fields))
        return reader.get_batch(index)


class _CutFile:
    """A log without footer, read as the stream of messages that follows the magic bytes.

    A dictionary grows by deltas and never changes what it holds, so any batch can be decoded from
    the schema, all dictionary messages and its own bytes.
    """

    def __init__(self, source: pa.MemoryMappedFile, size: int) -> None:
        self._source = source
        self._batches: list[tuple[int, int]] = []
        head: list[bytes] = []
        source.seek(len(_MAGIC))
        begin = len(_MAGIC)
        pending: list[bytes] = []
        words: list[int] = []
        while begin < size:
            try:
                message = pa.ipc.read_message(source)
            except (*_BROKEN, EOFError):
                break
            end = source.tell()
            if message.type == "record batch":
                head += pending
                pending = []
                self._batches.append((begin, end))
            else:
                pending.append(source.read_at(end - begin, begin))
                source.seek(end)
                if message.type == "schema":
                    head, pending = pending, []
                else:
                    words.append(begin)
            begin = end
        if not head:
            raise pa.ArrowInvalid("no schema")
        _limit_words(source, words)
        self._head = b"".join(head)
        self.schema = pa.ipc.open_stream(pa.py_buffer(self._head), options=_of_columns()).schema
        self.count = len(self._batches)
        self.trailer = b""
        if self._batches:
            # A run killed between its trailer and its footer leaves the trailer's batch as the last.
            _limit_rows(self, self.count - 1)
            last = self._open(self.count - 1, (0,)).read_next_batch_with_custom_metadata()
            found = last.custom_metadata and last.custom_metadata.get(TRAILER_KEY)
            if found:
                self.trailer = found
                self.count -= 1
                return
        # Behind the rows lies the recording, in batches of none. Without the trailer it is not known to be whole.
        while self.count and not arrow_sizes.rows(source, self._batches[self.count - 1][0]):
            self.count -= 1

    def _open(self, index: int, fields: tuple[int, ...]) -> pa.RecordBatchStreamReader:
        begin, end = self._batches[index]
        data = self._head + self._source.read_at(end - begin, begin)
        return pa.ipc.open_stream(pa.py_buffer(data), options=_of_columns(fields))

    def unpacked(self, index: int) -> int:
        return arrow_sizes.unpacked_size(self._source, self._batches[index][0])

    def metadata(self, index: int) -> dict[bytes, bytes]:
        _limit_rows(self, index)
        return dict(self._open(index, (0,)).read_next_batch_with_custom_metadata().custom_metadata or {})

    def batch(self, index: int, fields: tuple[int, ...]) -> pa.RecordBatch:
        return self._open(index, fields).read_next_batch()


def _of_columns(fields: tuple[int, ...] | None = None) -> pa.ipc.IpcReadOptions:
    """Reads these or all; without threads of Arrow's, except two for opening a file (see the log's writer)."""
    return pa.ipc.IpcReadOptions(included_fields=None if fields is None else list(fields), use_threads=False)


def _limit_words(source: pa.MemoryMappedFile, places: Sequence[int]) -> None:
    """Raises ValueError if dictionaries take more memory than those of any run."""
    total = 0
    for place in places:
        total += arrow_sizes.unpacked_size(source, place)
        if total > arrow_sizes.MOST_WORDS:
            raise _TooLarge(f"its words take more than {arrow_sizes.MOST_WORDS >> 20} MiB")


def _limit_rows(data: _WholeFile | _CutFile, index: int) -> None:
    """Refuses a batch that takes too much memory when it is unpacked."""
    size = data.unpacked(index)
    if size > arrow_sizes.MOST_BATCH:
        raise _TooLarge(f"batch {index + 1} takes {size >> 20} MiB, and {arrow_sizes.MOST_BATCH >> 20} is the most")


class Log:
    """An open event log. Use :func:`open_log`."""

    def __init__(self, path: str, source: _WholeFile | _CutFile) -> None:
        self.path = path
        self.shown = path
        """The name that reports have: of a trace that was imported on the way, the trace's."""
        self._source = source
        self._words: dict[str, list[str]] = {}
        self._limited: set[int] = set()  # batches that were found to be of no more than the largest size
        self._kept: dict[int, dict[str, Array]] = {}  # columns, by batch
        self._kept_bytes = 0
        self._kinds: dict[int, int] = {}  # bit of each kind that occurs, by batch
        self._one_at_a_time = threading.RLock()
        self._ahead: frozenset[str] = frozenset()
        self.schema: pa.Schema = source.schema
        self.metadata = RunMetadata.from_json(source.schema.metadata[METADATA_KEY])
        self.trailer: dict[str, Any] = json.loads(source.trailer) if source.trailer else {}
        self._operators: list[dict[str, Any]] | None = self.trailer.pop("operators", None)
        for entry in self._operators or ():
            if "provenance" in entry:
                entry["provenance"] = _RENAMED.get(entry["provenance"], entry["provenance"])
        if any(not entry.keys() >= _OPERATOR for entry in self._operators or ()):
            raise PhantoraError(
                f"{path}: another version of Phantora ({self.metadata.phantora or 'unknown'}) wrote the log, and this "
                "one cannot read it; run `phantora trace` again"
            )
        self.complete = bool(source.trailer)
        """False when the run was killed before it closed its log."""
        self._recorded = int(self.trailer.get("recording_batches", 0))
        self.num_batches: int = source.count - self._recorded

    @property
    def num_rows(self) -> int:
        """Number of rows; counted if the run was killed."""
        if "rows" in self.trailer:
            return int(self.trailer["rows"])
        return sum(len(self.batch(i, ("kind",))) for i in range(self.num_batches))

    @property
    def out_of_memory(self) -> bool:
        """True if an allocation failed that the run did not survive."""
        return self.trailer.get("status") != 0 and OOM in self.words("name")

    @property
    def reason(self) -> Reason:
        """Why the run ended; an earlier version noted no more than that it failed."""
        if not self.trailer.get("status"):
            return Reason.OK
        noted = {reason.value: reason for reason in Reason}.get(self.trailer.get("reason", ""))
        return noted or (Reason.OUT_OF_MEMORY if self.out_of_memory else Reason.SCRIPT_FAILED)

    @property
    def failure(self) -> str:
        """The line that ended a run that failed, with what to do; "" of others, and of one that was interrupted."""
        if self.reason in (Reason.OK, Reason.INTERRUPTED):
            return ""
        return failure_line(str(self.trailer.get("error", "")), self.reason)

    def operators(self) -> list[dict[str, Any]]:
        """The operators of the run, the longest first: fields of ``phantora.cost.wanted.Wanted``."""
        if self._operators is None:
            raise PhantoraError(
                f"{self.path} does not list its operators: the run was cut short or is old; run it again"
            )
        return self._operators

    def words(self, column: str) -> list[str]:
        """Every text that occurs in a text column, by index (after an empty one)."""
        if column not in TEXT_COLUMNS:
            raise KeyError(column)
        with self._one_at_a_time:
            if column not in self._words:
                self._words[column] = []
                if self.num_batches:
                    batch = self._batch(self.num_batches - 1, (COLUMNS.index(column),))
                    self._words[column] = batch.column(0).dictionary.to_pylist()
            return self._words[column]

    def record_batches(self, columns: Sequence[str] = COLUMNS) -> Iterator[pa.RecordBatch]:
        """The batches as Arrow data, for tools that speak it."""
        known = self.schema.names  # of an earlier format: fewer
        fields = tuple(sorted(COLUMNS.index(column) for column in columns if column in known))
        for index in range(self.num_batches):
            yield self._batch(index, fields)

    def _batch(self, index: int, fields: tuple[int, ...]) -> pa.RecordBatch:
        try:
            if index not in self._limited:
                _limit_rows(self._source, index)
                self._limited.add(index)
            batch = self._source.batch(index, fields)
            batch.validate(full=True)  # an index beyond its dictionary would read foreign memory
            if not len(batch):
                raise ValueError("rows are missing")
            return _renamed(batch)
        except _TooLarge as error:
            raise _damaged(self.path, str(error)) from error
        except _BROKEN as error:
            raise _damaged(self.path, f"batch {index + 1} of {self.num_batches} cannot be read") from error

    def batch(
        self,
        index: int,
        columns: Sequence[str] = COLUMNS,
        kinds: Collection[str] | None = None,
        ranks: Collection[int] | None = None,
    ) -> Batch:
        """Batch `index` with `columns` only, and only the rows of the given kinds and ranks."""
        wanted = set(columns)
        if kinds is not None:
            wanted.add("kind")
        if ranks is not None:
            wanted.add("rank")
        data = self._columns(index, wanted)
        count = len(next(iter(data.values())))
        mask: Array | None = None
        if kinds is not None:
            chosen = np.zeros(len(KINDS), bool)
            chosen[[KIND_CODE[kind] for kind in kinds]] = True
            mask = chosen[data["kind"]]
        if ranks is not None:
            chosen = np.zeros(int(data["rank"].max(initial=max(ranks, default=0))) + 1, bool)
            chosen[list(ranks)] = True
            of_rank = chosen[data["rank"]]
            mask = of_rank if mask is None else mask & of_rank
        if mask is None or bool(mask.all()):
            return Batch(index, data, np.arange(count))
        rows = np.flatnonzero(mask)
        return Batch(index, {name: values[rows] for name, values in data.items()}, rows)

    def _columns(self, index: int, wanted: Collection[str]) -> dict[str, Array]:
        """Columns of batch `index`. Those of the first batches are kept: an analysis reads them several times."""
        with self._one_at_a_time:
            return self._unpacked(index, wanted)

    def _unpacked(self, index: int, wanted: Collection[str]) -> dict[str, Array]:
        kept = self._kept.setdefault(index, {})
        fresh = {column for column in wanted if column not in kept}
        if not fresh:
            return {column: kept[column] for column in wanted}
        if self._kept_bytes < _MOST_KEPT:
            fresh |= self._ahead.difference(kept)
        known = self.schema.names
        order = tuple(sorted(COLUMNS.index(column) for column in fresh if column in known))
        arrow = self._batch(index, order)
        data: dict[str, Array] = {column: _unknown(arrow.num_rows) for column in fresh if column not in known}
        for position, number in enumerate(order):
            column = arrow.column(position)
            if pa.types.is_dictionary(column.type):
                data[COLUMNS[number]] = _indices(column.indices)
            else:
                data[COLUMNS[number]] = column.to_numpy(zero_copy_only=False)
        if "rank" in data and not 0 <= data["rank"].min() <= data["rank"].max() < _MOST_RANKS:
            raise _damaged(self.path, f"batch {index + 1} of {self.num_batches} names ranks that cannot be")
        if "kind" in data and index not in self._kinds:
            self._kinds[index] = sum(1 << int(kind) for kind in np.flatnonzero(np.bincount(data["kind"] + 1)[1:]))
        found = {column: data[column] if column in data else kept[column] for column in wanted}
        size = sum(values.nbytes for values in data.values())
        if self._kept_bytes + size <= _MOST_KEPT:
            self._kept_bytes += size
            kept |= data
        return found

    def read_ahead(self, columns: Collection[str]) -> None:
        """Whoever reads a column of a batch gets it with these: they are all read, one after the other."""
        self._ahead = frozenset(columns)

    def batches(
        self,
        columns: Sequence[str] = COLUMNS,
        kinds: Collection[str] | None = None,
        ranks: Collection[int] | None = None,
        reverse: bool = False,
    ) -> Iterator[Batch]:
        """All batches in order of `end`, or from the last to the first (rows inside a batch keep
        their order). Batches in which no row passes the filters are left out."""
        order = range(self.num_batches)
        having = (index for index in (reversed(order) if reverse else order) if self._has(index, kinds))
        for batch in prefetched(lambda index: self.batch(index, columns, kinds, ranks), having):
            if len(batch):
                yield batch

    def _has(self, index: int, kinds: Collection[str] | None) -> bool:
        """True if batch `index` has rows of one of the kinds."""
        if kinds is None:
            return True
        if index not in self._kinds:
            self._columns(index, ("kind",))
        return any(self._kinds[index] >> KIND_CODE[kind] & 1 for kind in kinds)

    def recording(self) -> list[Chunk]:
        """The records of the ranks, by rank; empty if it was not kept or the run was killed."""
        first = self.num_batches
        try:
            return [Chunk.from_metadata(self._source.metadata(first + i)) for i in range(self._recorded)]
        except PhantoraError as error:
            raise PhantoraError(f"{self.path}: {error}") from error
        except _BROKEN as error:
            raise _damaged(self.path, "the recording cannot be read") from error

    def require_rows(self) -> None:
        """Raises when there is nothing to report on."""
        if not self.num_batches:
            raise PhantoraError(
                f"{self.path}: the log has no rows: the run used no GPU or ended before it wrote any; "
                "look at the run's own output"
            )


def open_log(path: str | os.PathLike[str]) -> Log:
    """Opens the event log at `path`; a log of a killed run too. Raises PhantoraError for any other file."""
    path = os.fspath(path)
    batches = _batches(path, _mapped(path))
    _check_schema(path, batches.schema)
    try:
        return Log(path, batches)
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise _damaged(path, "its first or last part cannot be read") from error


def is_log(path: str | os.PathLike[str]) -> bool:
    """True if the file at `path` begins as logs do, whatever its name."""
    try:
        with open(path, "rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def _mapped(path: str) -> pa.MemoryMappedFile:
    """The bytes of the file, after its first ones were checked."""
    try:
        if os.path.isdir(path):
            raise IsADirectoryError(21, "Is a directory")
        if not os.path.getsize(path):
            raise PhantoraError(f"{path}: the file is empty, so it is no log; run `phantora trace` again")
        source = pa.memory_map(path, "r")
    except OSError as error:
        reason = cause_of(error)
        raise PhantoraError(f"{path}: cannot open the log: {reason}; give the path of a run's .arrow file") from error
    if source.read(len(_MAGIC)) != _MAGIC:
        raise _not_a_log(path)
    return source


def _batches(path: str, source: pa.MemoryMappedFile) -> _WholeFile | _CutFile:
    """The batches of a file with a footer, or of a killed run's without one."""
    try:
        return _WholeFile(source, pa.ipc.open_file(source, options=_of_columns()))
    except _TooLarge as error:
        raise _damaged(path, str(error)) from error
    except _BROKEN:
        try:
            return _CutFile(source, source.size())
        except _TooLarge as error:
            raise _damaged(path, str(error)) from error
        except _BROKEN as error:
            raise _not_a_log(path) from error


def _check_schema(path: str, schema: pa.Schema) -> None:
    """Refuses other versions of the log, and columns that no version has."""
    metadata = (schema.metadata or {}).get(METADATA_KEY)
    if metadata is None:
        raise _not_a_log(path)
    try:
        columns = tuple(schema.names)
        version = int(json.loads(metadata).get("format", 0))
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise _damaged(path, "it does not say what run it is of") from error
    if version not in READABLE:
        remedy = "upgrade Phantora (pip install -U phantora)" if version > LOG_FORMAT else "run `phantora trace` again"
        raise PhantoraError(f"{path}: the log has format {version}, this Phantora reads format {LOG_FORMAT}; {remedy}")
    if columns != tuple(column for column in COLUMNS if ADDED.get(column, 0) <= version):
        raise _not_a_log(path)
    if any(schema.field(name).type != kind for name, kind in FIELDS if name in columns):
        raise _damaged(path, "its columns have other types than a log's")  # run-length columns unpack to any size


def _renamed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """`batch` with the provenances that earlier logs call by another name."""
    at = batch.schema.get_field_index("provenance")
    if at < 0:
        return batch
    column = batch.column(at)
    words = column.dictionary.to_pylist()
    if _RENAMED.keys().isdisjoint(words):
        return batch
    named = pa.array([_RENAMED.get(word, word) for word in words], pa.utf8())
    return batch.set_column(at, batch.schema.field(at), pa.DictionaryArray.from_arrays(column.indices, named))


def _indices(column: pa.Array) -> Array:
    """The integers of a column, -1 for nulls."""
    if not column.null_count:
        plain: Array = column.to_numpy()
        return plain
    known, values = column.buffers()
    bits = np.frombuffer(known, np.uint8, (column.offset + len(column) + 7) // 8)
    valid = np.unpackbits(bits, bitorder="little")[column.offset : column.offset + len(column)]
    kind = np.dtype(f"{'int' if pa.types.is_signed_integer(column.type) else 'uint'}{column.type.bit_width}")
    numbers = np.frombuffer(values, kind)[column.offset : column.offset + len(column)]
    return np.where(valid, numbers, numbers.dtype.type(-1))


def _unknown(rows: int) -> Array:
    """A column that logs of an earlier format do not have."""
    return np.full(rows, np.nan, np.float32)


def _damaged(path: str, what: str) -> PhantoraError:
    return PhantoraError(f"{path}: the log is damaged: {what}; copy it anew, or run `phantora trace` again")


def _not_a_log(path: str) -> PhantoraError:
    remedy = instead(path) or "give the .arrow file that `phantora trace -o run.arrow` wrote"
    return PhantoraError(f"{path}: not a Phantora log; {remedy}")

"""The records of a run's ranks, kept in its log so that the run can be simulated again.

A chunk has up to :data:`CHUNK_RECORDS` records (``wire.layout.Record``) of one rank in one zstd frame:
the kinds and the times in order, then every other column sorted by kind, all but the kinds as
differences, then the texts (BLOB records) as they are, but for their kind. Chunks lie behind the last row,
ordered by rank, each as the metadata of a batch without rows, so that readers of rows pass over them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from phantora.errors import PhantoraError
from phantora.wire import layout
from phantora.wire.layout import opaque
from phantora.wire.records import make

CHUNK_RECORDS = 1 << 16
SPOOL_BYTES = 16 << 20
HEADER_KEY = b"phantora.recording"
DATA_KEY = b"phantora.recording.data"
RECORD = layout.dtype(layout.Record)

Records = npt.NDArray[np.void]

_CODEC = pa.Codec("zstd", compression_level=3)
_BLOB, _MEMORY = layout.Kind.BLOB, layout.Kind.MEMORY
_HELPER = layout.Flag["PH_F_HELPER"]
_NO_SLOT = layout.CONSTANTS["PH_NO_SLOT"]
_SORTED = tuple(name for name in RECORD.names or () if name not in ("kind", "time"))


@dataclass(frozen=True)
class Chunk:
    """`records` records of `rank`, compressed."""

    rank: int
    records: int
    data: bytes

    def metadata(self) -> dict[bytes, bytes]:
        """Content of a batch: a header and the encoded records."""
        header = {"rank": self.rank, "records": self.records, "wire": layout.WIRE_VERSION}
        return {HEADER_KEY: json.dumps(header).encode(), DATA_KEY: self.data}

    @classmethod
    def from_metadata(cls, metadata: dict[bytes, bytes]) -> Chunk:
        """Raises PhantoraError for a recording of another Phantora."""
        header = json.loads(metadata[HEADER_KEY])
        if header["wire"] != layout.WIRE_VERSION:
            raise PhantoraError(
                f"its recording has wire version {header['wire']}, this Phantora replays version "
                f"{layout.WIRE_VERSION}; run `phantora trace` again"
            )
        return cls(int(header["rank"]), int(header["records"]), metadata[DATA_KEY])


def _order(kinds: npt.NDArray[np.uint8]) -> npt.NDArray[np.intp]:
    """Positions of the records that are no text, sorted by kind."""
    order: npt.NDArray[np.intp] = np.argsort(kinds, kind="stable")
    numbers: npt.NDArray[np.intp] = order[kinds[order] != _BLOB]
    return numbers


def _difference(column: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    values = np.ascontiguousarray(column)
    out[:1] = values[:1]
    np.subtract(values[1:], values[:-1], out=out[1:])


def encode(rank: int, records: Records) -> Chunk:
    """One rank's records, packed."""
    kinds = np.ascontiguousarray(records["kind"])
    numbers = opaque(records).take(_order(kinds)).view(RECORD)
    texts = opaque(records)[kinds == _BLOB]
    packed = np.empty(records.nbytes, np.uint8)
    packed[: len(kinds)] = kinds
    at = len(kinds)
    for column in (records["time"][kinds != _BLOB], *(numbers[name] for name in _SORTED)):
        end = at + column.nbytes
        _difference(column, packed[at:end].view(column.dtype))
        at = end
    packed[at:] = texts.view(np.uint8).reshape(-1, RECORD.itemsize)[:, 1:].reshape(-1)
    return Chunk(rank, len(records), _CODEC.compress(packed, asbytes=True))


def decode(chunk: Chunk) -> Records:
    """The records of `chunk`. Raises ValueError or OSError if it is damaged."""
    if not 0 <= chunk.records <= CHUNK_RECORDS:
        raise ValueError(f"a chunk of {chunk.records} records")
    raw = _CODEC.decompress(chunk.data, decompressed_size=chunk.records * RECORD.itemsize, asbytes=True)
    at = 0

    def take(kind: npt.DTypeLike, count: int) -> npt.NDArray[Any]:
        nonlocal at
        column = np.frombuffer(raw, kind, count, at)
        at += column.nbytes
        return column

    kinds = take(np.uint8, chunk.records)
    order = _order(kinds)
    count = len(order)
    records = np.empty(chunk.records, RECORD)
    numbers = np.empty(count, RECORD)
    times = np.cumsum(take(RECORD["time"], count), dtype=RECORD["time"])
    for name in _SORTED:
        numbers[name] = np.cumsum(take(RECORD[name], count), dtype=RECORD[name])
    opaque(records)[order] = opaque(numbers)
    records["kind"] = kinds
    records["time"][kinds != _BLOB] = times
    texts = np.full((chunk.records - count, RECORD.itemsize), _BLOB, np.uint8)
    texts[:, 1:] = take(np.uint8, len(texts) * (RECORD.itemsize - 1)).reshape(len(texts), RECORD.itemsize - 1)
    opaque(records)[kinds == _BLOB] = opaque(texts.view(RECORD)[:, 0])
    return records


class Packed:
    """The records of one rank; each iteration unpacks them anew, chunk by chunk."""

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []

    def add(self, chunk: Chunk) -> None:
        """`chunk` follows the others."""
        self._chunks.append(chunk)

    def __iter__(self) -> Iterator[Records]:
        """Raises ValueError or OSError at a damaged chunk."""
        return map(decode, self._chunks)


def by_rank(chunks: Iterable[Chunk]) -> dict[int, Packed]:
    """The records of each rank, in order."""
    found: dict[int, Packed] = {}
    for chunk in chunks:
        found.setdefault(chunk.rank, Packed()).add(chunk)
    return found


def first_part(records: Iterable[Records], until: int) -> list[Records]:
    """The records up to the first that the rank's host sends after `until` (ns of its clock), and then the rank's exit.
    Records of helper threads, whose clocks are their own, do not end it. Allocations take no time and are left out."""
    parts: list[Records] = []
    for own in records:
        hosts = (own["kind"] != _BLOB) & (own["flags"] & _HELPER == 0)
        late = hosts & (own["time"] > until)
        at = int(late.argmax()) if late.any() else len(own)
        parts.append(opaque(own[:at])[own["kind"][:at] != _MEMORY].view(RECORD))
        if at < len(own):
            break
    return [*parts, make("RANK_EXIT", slot=_NO_SLOT, time=until)]


class RecordingWriter:
    """Gathers records of all ranks, which come in pieces of any size, into chunks.

    Chunks wait in memory, and from :data:`SPOOL_BYTES` on in a file in `folder` that has no name, so that nothing is
    left of it whatever ends the process. Raises OSError where it cannot be written.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._pending: dict[int, list[Records]] = {}
        self._waiting: dict[int, int] = {}
        self._spool = tempfile.SpooledTemporaryFile(SPOOL_BYTES, dir=folder)  # noqa: SIM115 (to the end of the run)
        self._end = 0
        self._chunks: dict[int, list[tuple[int, int, int]]] = {}  # records, and where their bytes lie

    def add(self, rank: int, records: Records) -> None:
        """Adds records of a rank; full chunks are encoded."""
        if not len(records):
            return
        self._pending.setdefault(rank, []).append(records)
        self._waiting[rank] = self._waiting.get(rank, 0) + len(records)
        if self._waiting[rank] >= CHUNK_RECORDS:
            self._encode(rank, whole=True)

    def _encode(self, rank: int, whole: bool) -> None:
        records = np.concatenate([opaque(part) for part in self._pending[rank]]).view(RECORD)
        while len(records) >= CHUNK_RECORDS or (len(records) and not whole):
            chunk = encode(rank, records[:CHUNK_RECORDS])
            self._spool.seek(self._end)
            self._spool.write(chunk.data)
            self._chunks.setdefault(rank, []).append((chunk.records, self._end, len(chunk.data)))
            self._end += len(chunk.data)
            records = records[CHUNK_RECORDS:]
        self._pending[rank] = [records]
        self._waiting[rank] = len(records)

    def finish(self) -> Iterator[Chunk]:
        """All chunks, by rank. Nothing is added afterwards; may be called again."""
        for rank in sorted(self._pending):
            self._encode(rank, whole=False)
            for records, begin, size in self._chunks.get(rank, ()):
                self._spool.seek(begin)
                yield Chunk(rank, records, self._spool.read(size))

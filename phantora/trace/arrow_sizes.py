"""Memory of a message of an Arrow file after unpacking, read from its header before Arrow takes the memory.

A batch is compressed buffer by buffer, and each buffer begins with the size that Arrow allocates for it. Some kilobytes
may thus stand for as much as one likes. The headers are flatbuffers; only the fields that are needed are known here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

MOST_BATCH = 256 << 20  # bytes of a batch of rows; the writer's are 13 MB
MOST_WORDS = 512 << 20  # bytes of all dictionaries together
_MAGIC_BYTES = 6  # "ARROW1", behind the footer and its length
_CONTINUES = 0xFFFFFFFF
_DICTIONARY, _BATCH = 2, 3  # kinds of messages


@dataclass(frozen=True)
class _Table:
    """A table of a flatbuffer: fields by number, each a position in `data`."""

    data: bytes
    at: int

    @classmethod
    def root(cls, data: bytes) -> _Table:
        return cls(data, _number("<I", data, 0))

    def field(self, number: int) -> int | None:
        """Position of the field; None if it has its default value."""
        vtable = self.at - _number("<i", self.data, self.at)
        place = 4 + 2 * number
        if place + 2 > _number("<H", self.data, vtable):
            return None
        offset = _number("<H", self.data, vtable + place)
        return self.at + offset if offset else None

    def table(self, number: int) -> _Table | None:
        place = self.field(number)
        return None if place is None else _Table(self.data, place + _number("<I", self.data, place))

    def structs(self, number: int, layout: str) -> Iterator[tuple[int, ...]]:
        """The structs of a vector."""
        place = self.field(number)
        if place is None:
            return
        begin = place + _number("<I", self.data, place)
        count, size = _number("<I", self.data, begin), struct.calcsize(layout)
        if begin + 4 + count * size > len(self.data):
            raise ValueError("a vector beyond its message")
        yield from struct.iter_unpack(layout, self.data[begin + 4 : begin + 4 + count * size])


def _number(layout: str, data: bytes, at: int) -> int:
    """Raises ValueError where there is none."""
    if not 0 <= at <= len(data) - struct.calcsize(layout):
        raise ValueError("a header that points beyond its end")
    return int(struct.unpack_from(layout, data, at)[0])


@dataclass(frozen=True)
class Blocks:
    """Positions of a whole file's messages, by its footer."""

    dictionaries: tuple[int, ...]
    batches: tuple[int, ...]


def blocks(source: pa.MemoryMappedFile) -> Blocks:
    """Raises ValueError for a file without footer."""
    size = source.size()
    length = _number("<i", source.read_at(4, max(0, size - _MAGIC_BYTES - 4)), 0)
    begin = size - _MAGIC_BYTES - 4 - length
    if length <= 0 or begin < 0:
        raise ValueError("no footer")
    footer = _Table.root(source.read_at(length, begin))
    kinds = (tuple(block[0] for block in footer.structs(number, "<qi4xq")) for number in (_DICTIONARY, _BATCH))
    return Blocks(*kinds)


def _header(source: pa.MemoryMappedFile, at: int) -> tuple[_Table, int]:
    """Header of the message at `at`, and the position of its body. Raises ValueError for a broken one."""
    start = source.read_at(8, at)
    first = _number("<I", start, 0)
    head = 8 if first == _CONTINUES else 4  # old writers leave the mark out
    length = _number("<i", start, 4) if first == _CONTINUES else first
    if not 0 <= length <= source.size() - at:
        raise ValueError("a header beyond the file's end")
    return _Table.root(source.read_at(length, at + head)), at + head + length


def rows(source: pa.MemoryMappedFile, at: int) -> int:
    """Rows of the batch at `at`. Raises ValueError for a broken header."""
    batch = _header(source, at)[0].table(2)
    place = None if batch is None else batch.field(0)
    return 0 if batch is None or place is None else _number("<q", batch.data, place)


def unpacked_size(source: pa.MemoryMappedFile, at: int) -> int:
    """Bytes that the buffers of the message at `at` take in memory. Raises ValueError for a broken header."""
    message, body = _header(source, at)
    kind, batch = message.field(1), message.table(2)
    if kind is None or batch is None:
        return 0
    if message.data[kind] == _DICTIONARY:
        batch = batch.table(1)
    elif message.data[kind] != _BATCH:
        return 0
    if batch is None:
        return 0
    packed, total = batch.field(3) is not None, 0
    for offset, size in batch.structs(2, "<qq"):
        total += max(0, size)
        if packed and size >= 8:
            place = body + offset
            if not 0 <= place <= source.size() - 8:
                raise ValueError("a buffer beyond the file's end")
            total += max(0, _number("<q", source.read_at(8, place), 0))
    return total

"""Protocol-buffer bytes without a library: single messages, and many of one kind at once with NumPy.

A batch of packets of one shape is a matrix of bytes, one row each: every field has the same
width in all rows (varints are padded with continuation bytes, which decoders must accept), so
lengths are constants and columns are filled by slices. So 6 million packets are written a second instead of 0.9 with
the builder of the package perfetto (`benchmarks/log_speed.py`); tests read ours with that package's messages. See
https://protobuf.dev/programming-guides/encoding/ for the format.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


def varint(value: int) -> bytes:
    """A whole number as protobuf writes it."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """A varint field."""
    return varint(field << 3) + varint(value)


def blob(field: int, *content: bytes | str) -> bytes:
    """A length-delimited field: text, bytes or a message made of `content`."""
    data = b"".join(piece.encode() if isinstance(piece, str) else piece for piece in content)
    return varint(field << 3 | 2) + varint(len(data)) + data


@dataclass(frozen=True)
class Varints:
    """A column of non-negative numbers, all as wide as the widest."""

    values: Ints
    width: int


@dataclass(frozen=True)
class Fixed64:
    """A column of 8-byte values."""

    values: npt.NDArray[np.uint64] | npt.NDArray[np.float64]


Piece = bytes | Varints | Fixed64


def numbers(field: int, values: Ints) -> list[Piece]:
    """A varint field with a value per row."""
    return [varint(field << 3), Varints(values, max(1, -(-int(values.max(initial=0)).bit_length() // 7)))]


def fixed(field: int, values: npt.NDArray[np.uint64] | npt.NDArray[np.float64]) -> list[Piece]:
    """A fixed64 or double field with a value per row."""
    return [varint(field << 3 | 1), Fixed64(values)]


def message(field: int, *content: Piece) -> list[Piece]:
    """A nested message."""
    return [varint(field << 3 | 2) + varint(width(content)), *content]


def width(pieces: tuple[Piece, ...] | list[Piece]) -> int:
    """Bytes that the pieces take together, in each row."""
    total = 0
    for piece in pieces:
        total += len(piece) if isinstance(piece, bytes) else piece.width if isinstance(piece, Varints) else 8
    return total


def rows(count: int, pieces: list[Piece]) -> Bytes:
    """`count` records made of `pieces`."""
    out = np.empty((count, width(pieces)), np.uint8)
    at = 0
    for piece in pieces:
        if isinstance(piece, bytes):
            out[:, at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)
        elif isinstance(piece, Varints):
            for i in range(piece.width):
                more = 128 if i < piece.width - 1 else 0
                out[:, at] = (piece.values >> (7 * i)) & 127 | more
                at += 1
        else:
            raw = np.ascontiguousarray(piece.values).view(np.uint8).reshape(count, 8)
            out[:, at : at + 8] = raw
            at += 8
    return out

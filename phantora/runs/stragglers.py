"""A real run without its stragglers: every launch takes what launches like it take, over all ranks and steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from phantora.trace.recording import Chunk, Records, decode, encode
from phantora.wire import layout
from phantora.wire.records import fields

_COMMUNICATION = tuple(getattr(layout.Kind, kind) for kind in ("COLLECTIVE", "SEND", "RECV", "GROUP_BEGIN"))
_TIMED = layout.Kind.TIMED


@dataclass(frozen=True)
class _Launch:
    chunk: int
    place: int
    """Position of the TIMED record in the chunk."""


def without_stragglers(chunks: Sequence[Chunk]) -> list[Chunk]:
    """The recording with, for every launch, the mean duration of its kind (communication: the median) and the median
    delay. Launches of one kind have one name, one operator and one size."""
    records = [decode(chunk).copy() for chunk in chunks]
    kinds: dict[tuple[Any, ...], list[_Launch]] = defaultdict(list)
    texts = _Texts()
    for number, (chunk, own) in enumerate(zip(chunks, records, strict=True)):
        texts.of(chunk.rank)
        for place in range(len(own)):
            if own["kind"][place] != _TIMED:
                texts.read(own[place : place + 1])
            elif place + 1 < len(own):
                kinds[texts.kind_of(own[place + 1 : place + 2])].append(_Launch(number, place))
    timed = fields("TIMED")
    views = [own.view(timed) for own in records]
    for kind, launches in kinds.items():
        durations = [int(views[one.chunk]["duration"][one.place]) for one in launches]
        delays = [int(views[one.chunk]["delay"][one.place]) for one in launches]
        middle = np.median if kind[0] in _COMMUNICATION else np.mean
        duration, delay = round(float(middle(durations))), round(float(np.median(delays)))
        for one in launches:
            views[one.chunk]["duration"][one.place], views[one.chunk]["delay"][one.place] = duration, delay
    return [encode(chunk.rank, own) for chunk, own in zip(chunks, records, strict=True)]


class _Texts:
    """Names and signatures by their numbers, and which operators are open, rank by rank."""

    def __init__(self) -> None:
        self._rank = -1
        self._blob = b""
        self._names: dict[int, bytes] = {}
        self._signatures: dict[int, bytes] = {}
        self._operators: dict[int, bytes] = {}

    def of(self, rank: int) -> None:
        """The records that follow are of `rank`."""
        if rank != self._rank:
            self._rank, self._names, self._signatures, self._operators = rank, {}, {}, {}

    def read(self, record: Records) -> None:
        """Learns from one record."""
        kind = int(record["kind"][0])
        if kind == layout.Kind.BLOB:
            blob = record.view(layout.dtype(layout.Blob))
            self._blob += blob["data"][0, : int(blob["used"][0])].tobytes()
            return
        if kind == layout.Kind.DEFINE_NAME:
            self._names[int(record["id"][0])] = self._blob
        elif kind == layout.Kind.DEFINE_SIGNATURE:
            self._signatures[int(record["id"][0])] = self._blob
        elif kind == layout.Kind.OP_BEGIN:
            self._operators[int(record["op"][0])] = self._signatures.get(int(record["id"][0]), b"")
        self._blob = b""

    def kind_of(self, launch: Records) -> tuple[Any, ...]:
        """The key of equal launches: all fields of a record but its time, stream, operator instance and peer."""
        kind = int(launch["kind"][0])
        operator = self._operators.get(int(launch["op"][0]), b"")
        named = launch.view(fields(layout.Kind.names()[kind]))
        if kind == layout.Kind.KERNEL:
            sizes = [int(named[name][0]) for name in ("grid_x", "grid_y", "grid_z", "block_x", "shared_bytes")]
            return (kind, operator, self._names.get(int(launch["id"][0]), b""), *sizes)
        if kind == layout.Kind.GROUP_BEGIN:
            return (kind, operator, int(named["records"][0]))
        return (kind, operator, int(named["bytes"][0]), int(launch["id"][0]) if kind == layout.Kind.MEMCPY else 0)

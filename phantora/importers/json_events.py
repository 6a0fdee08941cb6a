"""The events of a trace in Chrome's JSON form, read in batches, so that memory contains one batch and not the file.

The file is an object with ``traceEvents`` among its keys, or an array of events. It may be compressed with gzip, and it
may be cut short. The array is cut into pieces where one event ends and the next begins. Whether a place between ``}``
and ``{`` is such a place is found by parsing what lies before it.
"""

from __future__ import annotations

import gc
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import IO, Any

import orjson

from phantora.errors import PhantoraError, cause_of
from phantora.trace.other_files import dump_of

CHUNK_BYTES = 8 << 20
"""Bytes of the file that are read at once."""
_GZIP_FORMAT = 31  # zlib's name of it
_GZIP_MAGIC = b"\x1f\x8b"
_BETWEEN = re.compile(rb'(?<=\})\s*,\s*(?=\{\s*"(?:ph|name|cat|ts|pid)")')
_NEXT = re.compile(rb"\s*,\s*(?=\{)")
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_NOT_JSON = re.compile(rb"(?<=[:,\[\s])[-+]?(?:nan|inf|infinity)(?=\s*[,}\]])", re.IGNORECASE)
_AFTER = "unexpected content after document"  # orjson's message
_TRIES = 64  # places to cut at, from the last one backwards
_MOST_HEAD = 256 << 20  # bytes before the events

Event = dict[str, Any]


class EventFile:
    """A trace file. Its contents other than events are complete when :meth:`batches` is exhausted."""

    def __init__(self, path: str, progress: Callable[[int], None] | None = None) -> None:
        """`progress` gets the number of bytes that are read."""
        self.path = path
        self._progress = progress
        self.header: dict[str, Any] = {}
        """Keys of the file next to ``traceEvents``."""
        self.cut_short = False
        """The file ends within its events."""
        self.dropped = 0
        """Events that are no JSON."""
        self._head = b"{"
        self._tail = b""

    def batches(self) -> Iterator[list[Event]]:
        """The events in order of the file. Raises PhantoraError for a file that is no trace."""
        collects = gc.isenabled()
        gc.disable()  # events are many objects without circles: to look for some takes half of the time
        try:
            with open(self.path, "rb") as file:
                source = _Source(file)
                yield from self._batches(source)
                self.cut_short |= source.broken
        except OSError as error:
            reason = cause_of(error)
            raise PhantoraError(f"{self.path}: cannot read the trace: {reason}") from error
        finally:
            if collects:
                gc.enable()
        self.header = _header(self._head, self._tail)

    def _batches(self, source: _Source) -> Iterator[list[Event]]:
        buffer = self._first(source)
        while True:
            done, events, buffer = self._events(buffer, source.ended)
            if events:
                yield events
            if done:
                break
            buffer += source.read()
            if self._progress is not None:
                self._progress(source.place)
        self._tail = buffer
        while not source.ended:
            self._tail += source.read()

    def _first(self, source: _Source) -> bytes:
        """The rest after the beginning of the list of events."""
        buffer = source.read()
        if buffer.lstrip()[:1] == b"[":
            return buffer.lstrip()[1:]
        while (found := _EVENTS.search(buffer)) is None:
            if source.ended or len(buffer) > _MOST_HEAD:
                remedy = dump_of(self.path) or (
                    "it has no list of traceEvents; give the file that prof.export_chrome_trace() or "
                    "tensorboard_trace_handler() writes"
                )
                raise PhantoraError(f"{self.path}: not a trace of torch.profiler: {remedy}")
            buffer += source.read()
        self._head = buffer[: found.start()]
        return buffer[found.end() :]

    def _events(self, buffer: bytes, ended: bool) -> tuple[bool, list[Event], bytes]:
        """True if the list has ended, the events at the beginning of `buffer`, and the rest of it."""
        if ended:
            with suppress(orjson.JSONDecodeError):
                return True, orjson.loads(b"[" + buffer), b""
        cut = len(buffer)
        for _ in range(_TRIES):
            if (cut := _last_end(buffer, cut)) < 0:
                break
            text = b"[" + buffer[: cut + 1] + b"]"
            try:
                return False, orjson.loads(text), _NEXT.sub(b"", buffer[cut + 1 :], 1)
            except orjson.JSONDecodeError as error:
                if error.msg.startswith(_AFTER):
                    return self._list_ended(buffer, _place(error) - 1)
                if _place(error) < len(text) - 1:
                    return False, self._repaired(buffer[: cut + 1]), _NEXT.sub(b"", buffer[cut + 1 :], 1)
        if not ended:
            return False, [], buffer
        try:
            orjson.loads(b"[" + buffer)
        except orjson.JSONDecodeError as error:
            if error.msg.startswith(_AFTER):
                return self._list_ended(buffer, _place(error) - 1)
        return self._last_of_cut_file(buffer)

    @staticmethod
    def _list_ended(buffer: bytes, end: int) -> tuple[bool, list[Event], bytes]:
        return True, orjson.loads(b"[" + buffer[:end]), buffer[end:]

    def _last_of_cut_file(self, buffer: bytes) -> tuple[bool, list[Event], bytes]:
        """For a file that ends within its list: the last event, if it is complete."""
        self.cut_short = True
        with suppress(orjson.JSONDecodeError):
            return True, orjson.loads(b"[" + buffer.rstrip().rstrip(b",") + b"]"), b""
        return True, self._repaired(buffer) if b"}" in buffer else [], b""

    def _repaired(self, text: bytes) -> list[Event]:
        """Events of a text that is no JSON: numbers that are none become null, other damage costs its event."""
        text = _NOT_JSON.sub(b"null", text.decode(errors="replace").encode())
        with suppress(orjson.JSONDecodeError):
            whole: list[Event] = orjson.loads(b"[" + text + b"]")
            return whole
        events: list[Event] = []
        for piece in _BETWEEN.split(text):
            try:
                events.append(orjson.loads(piece))
            except orjson.JSONDecodeError:
                self.dropped += 1
        return events


class _Source:
    """The bytes of a file, unpacked; a gzip file that is cut short ends where its data end."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._packed = file.read(2) == _GZIP_MAGIC
        self._unpacker = zlib.decompressobj(_GZIP_FORMAT)
        file.seek(0)
        self.ended = False
        self.broken = False

    @property
    def place(self) -> int:
        """Bytes of the file that are read."""
        return self._file.tell()

    def read(self) -> bytes:
        """The next piece; empty at the end."""
        data = self._file.read(CHUNK_BYTES)
        if not data:
            self.ended = True
            self.broken = self._packed and not self._unpacker.eof
            return b""
        return self._unpack(data) if self._packed else data

    def _unpack(self, data: bytes) -> bytes:
        pieces: list[bytes] = []
        while data:
            if self._unpacker.eof:  # a file of several parts
                self._unpacker = zlib.decompressobj(_GZIP_FORMAT)
            try:
                pieces.append(self._unpacker.decompress(data))
            except zlib.error:
                self.ended = self.broken = True
                break
            data = self._unpacker.unused_data
        return b"".join(pieces)


def _place(error: orjson.JSONDecodeError) -> int:
    """The place of an error in bytes; orjson counts characters."""
    return len(error.doc[: error.pos].encode(errors="surrogatepass"))


def _last_end(text: bytes, before: int) -> int:
    """The last ``}`` before position `before` that ``, {`` follows; -1 if there is none."""
    at = before
    while (at := text.rfind(b"}", 0, at)) >= 0:
        if _NEXT.match(text, at + 1):
            return at
    return -1


def _header(head: bytes, tail: bytes) -> dict[str, Any]:
    """Keys before and after the list of events; of a file that is cut short those before."""
    for text in (head + b'"traceEvents":[]' + (tail or b"}"), head.rstrip().rstrip(b",") + b"}"):
        with suppress(orjson.JSONDecodeError):
            found = orjson.loads(_NOT_JSON.sub(b"null", text))
            if isinstance(found, dict):
                found.pop("traceEvents", None)
                return found
    return {}

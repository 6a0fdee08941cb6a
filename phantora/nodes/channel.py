"""Messages between the terminal and an agent: JSON, and bytes that go with it."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from phantora.errors import PhantoraError

_SIZES = struct.Struct("!II")
_MOST = 1 << 28
SILENT_SECONDS = 20
"""Seconds without an acknowledgement after which a connection counts as lost."""


def tune(link: socket.socket) -> None:
    """Sends small messages at once, and notices a machine that has gone without a word."""
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_SECONDS // 4)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENT_SECONDS // 4)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_SECONDS * 1000)


class Channel:
    """One end. Any thread may send, one receives."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self._lock = threading.Lock()

    def send(self, message: Mapping[str, Any], data: bytes = b"") -> None:
        """Sends `message`. A connection that has ended is noticed by its reader."""
        text = json.dumps(message).encode()
        with self._lock, suppress(OSError):
            self.link.sendall(_SIZES.pack(len(text), len(data)) + text + data)

    def receive(self) -> tuple[dict[str, Any], bytes] | None:
        """The next message; None at the end. Raises PhantoraError for what no agent sends."""
        head = self._exactly(_SIZES.size)
        if head is None:
            return None
        length, more = _SIZES.unpack(head)
        if max(length, more) > _MOST:
            raise PhantoraError("the connection is not that of an agent of Phantora")
        text, data = self._exactly(length), self._exactly(more)
        if text is None or data is None:
            return None
        try:
            message = json.loads(text)
        except ValueError:
            raise PhantoraError("the connection is not that of an agent of Phantora") from None
        return message, data

    def _exactly(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            try:
                piece = self.link.recv(min(count - len(data), 1 << 20))
            except OSError:
                return None
            if not piece:
                return None
            data += piece
        return bytes(data)

    def close(self) -> None:
        """Ends the connection, for a thread that receives too."""
        with suppress(OSError):
            self.link.shutdown(socket.SHUT_RDWR)
        self.link.close()

"""The C++ relay between the memory of a node and that of the simulator (``sim/engine/relay``), typed."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phantora.wire import engine
from phantora.wire.session import Session


def _numbers(ranks: Sequence[int]) -> ctypes.Array[ctypes.c_int32]:
    return (ctypes.c_int32 * len(ranks))(*ranks)


@dataclass(frozen=True)
class Traffic:
    """What the connections of a side have carried; a message is what one call sent or received."""

    sent: int
    received: int
    messages_sent: int
    messages_received: int


class Relay:
    """One side. It owns the descriptors of its sockets."""

    def __init__(self, library: Path, session: Session) -> None:
        self._lib = engine.bind(library)
        self._session = session  # keeps the mapping alive
        self._sockets: list[int] = []
        self._handle: int | None = None
        self._counts = (ctypes.c_int64 * 4)()

    @classmethod
    def of_node(cls, library: Path, session: Session, node: int, link: socket.socket) -> Relay:
        """The side of a node, whose ranks `session` names; runs at once."""
        made = cls(library, session)
        ranks = session.real
        made._handle = made._lib.phr_follow(session.address, node, made._own(link), _numbers(ranks), len(ranks))
        return made

    @classmethod
    def of_simulator(
        cls, library: Path, session: Session, nodes: Sequence[tuple[socket.socket, Sequence[int]]]
    ) -> Relay:
        """The side of the simulator, with a connection and the ranks of each node; runs at once."""
        made = cls(library, session)
        made._handle = made._lib.phr_mirror(session.address)
        for link, ranks in nodes:
            made._lib.phr_add_node(made._handle, made._own(link), _numbers(ranks), len(ranks))
        made._lib.phr_start(made._handle)
        return made

    def _own(self, link: socket.socket) -> int:
        link.setblocking(True)
        self._sockets.append(link.detach())
        return self._sockets[-1]

    @property
    def lost(self) -> int | None:
        """The first node whose connection has ended."""
        found = self._lib.phr_lost(self._handle) if self._handle else -1
        return None if found < 0 else int(found)

    def traffic(self) -> Traffic:
        """What its connections have carried until now."""
        if self._handle:
            self._lib.phr_traffic(self._handle, self._counts)
        return Traffic(*self._counts)

    def close(self) -> None:
        """Ends the connections."""
        if self._handle:
            self.traffic()
            self._lib.phr_close(self._handle)
            self._handle = None
        for descriptor in self._sockets:
            os.close(descriptor)
        self._sockets.clear()

"""Targets of fuzz.py: ranks that say anything to the engine, live and as a recording."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from phantora.errors import PhantoraError
from phantora.sim.engine import library as native
from phantora.wire import layout, records
from tests.support.fakeranks import CONTROL, RECORD, Bench, FakeRank

ROOT = Path(__file__).resolve().parents[2]

WORLD = 3
CELL = 1 + RECORD.itemsize  # whose record, and the record
MOST_TURNS = 2000  # of the engine for one input: thousands of times what the scenarios take
TURN_EVERY = 8  # records
MOST_RECORDS = 2048


def engine_library() -> Path:
    """The engine of the environment variable PHANTORA_FUZZ_ENGINE (one with sanitizers), or the one that is built."""
    if given := os.environ.get("PHANTORA_FUZZ_ENGINE"):
        return Path(given)
    from phantora.stubs.cache import ensure

    return ensure().engine


class _Notes(FakeRank):
    """A rank that keeps what it says instead of saying it."""

    def __post_init__(self) -> None:
        self.ring = np.zeros(layout.RING_RECORDS, RECORD)
        self.control = np.zeros(1, CONTROL)
        self.replies = np.zeros(layout.REPLY_SLOTS, layout.dtype(layout.Reply))


def scenario(speak: str) -> bytes:
    """Records of three ranks in a correct run, in turns."""
    ranks = [_Notes(index, SimpleNamespace()) for index in range(WORLD)]  # type: ignore[arg-type]
    for rank in ranks:
        rank.start()
        rank.stream(64)
        rank.communicator(1, WORLD, rank.index)
        if speak == "kernels":
            rank.emit("OP_BEGIN", op=1, id=0, start=10)
            rank.kernel("k:1000", 64, at=20)
            rank.emit("OP_END", op=1, at=30)
            rank.emit("MEMCPY", stream=64, id=2, bytes=4096, peer=-1)
            rank.emit("MEMSET", stream=0, bytes=4096)
            rank.emit("EVENT_RECORD", stream=64, id=5)
            rank.emit("STREAM_WAIT", stream=0, id=5)
            rank.emit("HOST_FUNC", stream=0, duration=100)
            rank.emit("MEMORY", id=0, allocated=512, reserved=1024, change=512, address=4096)
            rank.emit("MEMORY", id=1, allocated=0, reserved=1024, change=-512, address=4096)
            for kind in ("EVENT_QUERY", "EVENT_SYNC", "EVENT_TIME"):
                rank.ask(kind, kind, id=5)
            rank.ask("room", "ROOM", stream=64, depth=1)
            rank.emit("CORRELATE", id=7)
            rank.kernel("k:10", 64)
            rank.ask("sync", "DEVICE_SYNC", device=0)
            rank.ask("profile", "PROFILE")
            rank.ask("name", "PROFILE_NAME", id=1)
            rank.emit("STREAM_DESTROY", stream=64)
        elif speak == "collectives":
            for collective in range(9):
                rank.collective(1, 12, kind=collective, stream=64, data=b"abcdefghijkl", ticket=collective + 1)
                rank.ask("payload", "PAYLOAD", ticket=collective + 1)
            rank.blob(b"mine")
            rank.ask("exchange", "EXCHANGE", key_hi=1, key_lo=2, members=WORLD, index=rank.index, ticket=50)
            rank.collective(1, 1 << 20, stream=0)
            rank.ask("sync", "STREAM_SYNC", stream=0)
        else:
            rank.emit("GROUP_BEGIN", records=2)
            rank.transfer("SEND", 1, (rank.index + 1) % WORLD, 4096, stream=64)
            rank.transfer("RECV", 1, (rank.index - 1) % WORLD, 4096, stream=64)
            rank.ask("sync", "STREAM_SYNC", stream=64)
            rank.collective(1, 64, stream=64)
            rank.emit("COMM_ABORT", id=1)
            rank.emit("COMM_DESTROY", id=1)
        rank.exit()
    said = [rank.ring[: int(rank.control["head"][0])] for rank in ranks]
    cells = [
        bytes([index]) + said[index][at].tobytes()
        for at in range(max(map(len, said)))
        for index in range(WORLD)
        if at < len(said[index])
    ]
    return b"".join(cells)


def scenarios() -> list[bytes]:
    """Seeds: kernels and waits; collectives with their bytes; sends, receives, an abort."""
    return [scenario(what) for what in ("kernels", "collectives", "transfers")]


def turns(engine: native.Engine, most: int = MOST_TURNS) -> None:
    """Lets the engine work until nothing moves; every price is 1 us. Raises PhantoraError for what it refuses."""
    for _ in range(most):
        reason = engine.run(0)
        if reason & native.ERROR:
            raise PhantoraError(engine.error())
        asked = False
        while (request := engine.next_price()) is not None:
            asked = True
            engine.price_kernels(request)
            engine.set_price(request.id, (1000,) * max(1, request.kernels))
        if not asked and not reason & native.MOVED:
            return
    raise TimeoutError(f"the engine still moves after {most} turns")


def _cells(path: Path) -> list[tuple[int, bytes]]:
    data = path.read_bytes()
    whole = min(len(data) // CELL, MOST_RECORDS)
    return [(data[at * CELL] % WORLD, data[at * CELL + 1 : (at + 1) * CELL]) for at in range(whole)]


def read_live(path: Path) -> None:
    """Says the records of a file to an engine, as three ranks. Raises PhantoraError when it refuses them."""
    bench = Bench.create(engine_library(), WORLD, record=True, speak=False)
    try:
        for number, (index, record) in enumerate(_cells(path)):
            rank = bench.ranks[index]
            head = int(rank.control["head"][0])
            rank.ring[head % layout.RING_RECORDS] = np.frombuffer(record, RECORD)[0]
            rank.control["head"] = head + 1
            if number % TURN_EVERY == TURN_EVERY - 1:
                turns(bench.engine)
        turns(bench.engine)
        bench.engine.release_sleepers([])
        bench.engine.diagnose()
        for index in range(WORLD):
            bench.engine.rank_died(index, 1)
        turns(bench.engine)
        bench.engine.take_rows(True)
        for index in range(WORLD):
            bench.engine.take_records(index, True)
        bench.engine.status()
    finally:
        bench.engine.close()
        bench.session.close()


def read_played(path: Path) -> None:
    """The same as recordings that are replayed."""
    bench = Bench.create(engine_library(), WORLD, speak=False)
    bench.engine.play(1.0)
    try:
        for index, record in _cells(path):
            rank = bench.ranks[index]
            head = int(rank.control["head"][0])
            rank.ring[head % layout.RING_RECORDS] = np.frombuffer(record, RECORD)[0]
            rank.control["head"] = head + 1
        turns(bench.engine)
        bench.engine.diagnose()
        bench.engine.take_rows(True)
    finally:
        bench.engine.close()
        bench.session.close()


def kind_of(record: bytes) -> str:
    """The kind of a record, for a person who looks at a finding."""
    named = records.read(np.frombuffer(record, RECORD).copy())
    return layout.Kind.names()[int(named["kind"])]

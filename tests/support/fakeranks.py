"""Ranks without processes: records are written straight into the rings, prices come from kernel names.

A kernel named ``k:1000`` takes 1000 ns, a copy its bytes in ns. So does a collective or a transfer,
unless the bench is given `flows`: then it is those flows, after a latency.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from phantora.fold.mesh import Fold
from phantora.hardware.topology import Flow
from phantora.sim.engine import library as native
from phantora.wire import layout, records
from phantora.wire.places import Places
from phantora.wire.session import Session, SessionConfig

RECORD = layout.dtype(layout.Record)
BLOB = layout.dtype(layout.Blob)
CONTROL = layout.dtype(layout.Control)
REPLY = layout.dtype(layout.Reply)
GRID = {"grid_x": 1, "grid_y": 1, "grid_z": 1, "block_x": 1024, "block_y": 1, "block_z": 1}


@dataclass
class FakeRank:
    """One rank's end of the wire. Methods append one record each, at host time `at`."""

    index: int
    session: Session
    clock: int = 0
    names: dict[str, int] = field(default_factory=dict)
    slots: int = 0
    requests: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        header = self.session.header
        ring = int(header["ring_offset"]) + self.index * layout.RING_RECORDS * RECORD.itemsize
        self.ring = np.ndarray((layout.RING_RECORDS,), RECORD, buffer=self.session.area, offset=ring)
        replies = int(header["reply_offset"]) + self.index * layout.REPLY_SLOTS * REPLY.itemsize
        self.replies = np.ndarray((layout.REPLY_SLOTS,), REPLY, buffer=self.session.area, offset=replies)
        self.control = self.session.control[self.index : self.index + 1]

    def start(self) -> FakeRank:
        self.emit("RANK_START", pid=1, devices=1)
        return self

    def emit(self, kind: str, *, at: int | None = None, **fields: float) -> None:
        if at is not None:
            self.clock = max(self.clock, at)
        head = int(self.control["head"][0])
        fields.setdefault("slot", layout.CONSTANTS["PH_NO_SLOT"])
        place = head % layout.RING_RECORDS
        self.ring[place : place + 1] = records.make(kind, time=self.clock, **fields)
        self.control["head"] = head + 1
        self.control["clock"] = self.clock

    def blob(self, data: bytes) -> None:
        for start in range(0, len(data), layout.BLOB_BYTES):
            piece = data[start : start + layout.BLOB_BYTES]
            head = int(self.control["head"][0])
            blob = np.zeros(1, BLOB)
            blob["kind"], blob["used"] = layout.Kind.BLOB, len(piece)
            blob["data"][0, : len(piece)] = np.frombuffer(piece, np.uint8)
            self.ring[head % layout.RING_RECORDS] = blob.view(RECORD)[0]
            self.control["head"] = head + 1

    def name(self, text: str) -> int:
        if text not in self.names:
            self.names[text] = len(self.names) + 1
            self.blob(text.encode())
            self.emit("DEFINE_NAME", id=self.names[text])
        return self.names[text]

    def stream(self, number: int, priority: int = 0, blocking: bool = False) -> int:
        flags = 0 if blocking else layout.Flag["PH_F_NONBLOCKING"]
        self.emit("STREAM_CREATE", stream=number, priority=priority, flags=flags)
        return number

    def kernel(self, text: str, stream: int = 0, blocks: int = 10**6, at: int | None = None) -> None:
        number = self.name(text)
        self.emit("KERNEL", id=number, stream=stream, at=at, **GRID | {"grid_x": blocks})

    def ask(self, label: str, kind: str, *, at: int | None = None, **fields: int) -> None:
        """A request; the answer is read with :meth:`answer` under `label`."""
        slot = self.slots % layout.REPLY_SLOTS
        self.slots += 1
        self.replies["futex"][slot] = 0
        self.requests[label] = slot
        self.emit(kind, slot=slot, flags=layout.Flag["PH_F_BLOCKED"] | fields.pop("flags", 0), at=at, **fields)

    def answer(self, label: str) -> tuple[int, int] | None:
        """(status, time) or None while pending. Moves the clock as a rank would."""
        reply = self.replies[self.requests[label]]
        if not reply["futex"]:
            return None
        self.clock = max(self.clock, int(reply["time"]))
        return int(reply["status"]), int(reply["time"])

    def payload(self, label: str) -> bytes:
        reply = self.replies[self.requests[label]]
        return bytes(reply["data"][: int(reply["length"])])

    def communicator(self, number: int, members: int, own: int, key: int = 7) -> int:
        self.emit("COMM_CREATE", id=number, key_hi=key, key_lo=key, members=members, rank=own)
        return number

    def collective(
        self,
        comm: int,
        nbytes: int,
        *,
        kind: int = 0,
        stream: int = 0,
        at: int | None = None,
        data: bytes | None = None,
        ticket: int = 0,
    ) -> None:
        """A collective of float32. With `data`, the engine computes the result, which a request with the `ticket`
        reads."""
        if data is not None:
            self.blob(data)
        self.emit(
            "COLLECTIVE",
            id=comm,
            stream=stream,
            coll=kind,
            dtype=7,
            count=nbytes // 4,
            bytes=nbytes,
            ticket=ticket,
            at=at,
        )

    def transfer(self, kind: str, comm: int, peer: int, nbytes: int, *, stream: int = 0, at: int | None = None) -> None:
        self.emit(kind, id=comm, stream=stream, peer=peer, dtype=7, count=nbytes // 4, bytes=nbytes, at=at)

    def exit(self, at: int | None = None) -> None:
        self.emit("RANK_EXIT", at=at)


def timing(kernel_gap: int = 0, crowded_gap: int = 0) -> native.Timing:
    """Streams that add nothing but these gaps."""
    return native.Timing(
        kernel_gap_ns=kernel_gap, crowded_gap_ns=crowded_gap, communication_start_ns=2000, filling_copy_bytes=4 << 20
    )


@dataclass
class Bench:
    """An engine over fake ranks."""

    session: Session
    engine: native.Engine
    ranks: list[FakeRank]
    durations: dict[str, int] = field(default_factory=dict)
    """Durations of kernels, by name, if they differ from the name's."""
    flows: Callable[[native.PriceRequest], tuple[int, Sequence[Flow]]] | None = None
    """Latency in ns and flows of a collective or transfer."""
    profile: native.KernelProfile | None = None
    """Profile of all kernels."""
    slowed: float = 0.0
    """Share of the communication slowdown that communication feels from kernels next to it."""

    @classmethod
    def create(
        cls,
        library: Path,
        world: int = 1,
        sms: int = 100,
        *,
        record: bool = False,
        speak: bool = True,
        fold: Fold | None = None,
        places: Places | None = None,
        memory: int = 0,
    ) -> Bench:
        """`record`: the engine keeps what ranks say; without `speak` they have not started; in a folded run `ranks`
        are the processes. `places`: ranks that share GPUs of so much `memory`."""
        device: dict[str, Any] = {
            "name": b"test",
            "sms": sms,
            "max_threads_per_sm": 2048,
            "max_blocks_per_sm": 32,
            "memory_bytes": memory,
        }
        config = SessionConfig(
            world,
            world,
            real=fold.real if fold else None,
            gpus_per_host=places.gpus_per_host if places else 0,
            mps=bool(places and places.mps),
        )
        session = Session.create(config, device, {})
        engine = native.Engine(library, session)
        if record:
            engine.record()
        engine.set_timing(timing())
        if fold:
            engine.fold(fold)
        ranks = [FakeRank(index, session) for index in session.real]
        return cls(session, engine, [rank.start() for rank in ranks] if speak else ranks)

    def run(self) -> int:
        """Runs until nothing moves; answers prices. Returns the last reasons."""
        idle = 0
        reason = 0
        while idle < 2:
            reason = self.engine.run(0)
            if reason & native.ERROR:
                return reason
            while (request := self.engine.next_price()) is not None:
                if request.kind in (native.OPERATOR, native.KERNEL):
                    names = [self.engine.text(native.NAMES, k.name) for k in self.engine.price_kernels(request)]
                    durations = tuple(self.durations.get(name, int(name.split(":")[1])) for name in names)
                else:
                    durations = (request.bytes,)
                    if self.flows and request.kind in (native.COLLECTIVE, native.TRANSFER):
                        latency, flows = self.flows(request)
                        self.engine.set_flows(request.id, latency, flows, [-1] * len(flows), self.slowed)
                if self.profile and request.kind in (native.OPERATOR, native.KERNEL):
                    self.engine.set_profile(request.id, self.profile)
                self.engine.set_price(request.id, durations)
                reason |= native.MOVED
            idle = idle + 1 if reason in (native.IDLE, native.DONE) else 0
        return reason

    def rows(self, everything: bool = True) -> list[dict[str, Any]]:
        rows = self.engine.take_rows(everything)
        kinds = layout.RowKind.names()
        return [
            {
                "kind": kinds[row["kind"]],
                "rank": int(row["rank"]),
                "stream": int(row["stream"]),
                "name": self.engine.text(native.NAMES, int(row["name"])) if row["name"] >= 0 else "",
                "start": int(row["start"]),
                "end": int(row["end"]),
                "ready": int(row["ready"]),
                "id": int(row["id"]),
                "link": int(row["link"]),
                "last_rank": int(row["last_rank"]),
                "last_id": int(row["last_id"]),
            }
            for row in rows
        ]

    def spans(self, *kinds: str) -> list[tuple[str, int, int]]:
        """(name, start, end) of the rows of some kinds, in the log's order."""
        wanted = kinds or ("KERNEL",)
        return [(row["name"], row["start"], row["end"]) for row in self.rows() if row["kind"] in wanted]

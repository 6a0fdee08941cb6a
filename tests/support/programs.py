"""Random programs of a few ranks, said to the engine in random order: kernels on streams, events, waits, groups.

Each rank says what it has to as a real one does: it goes on from an answer when that has come, at its time. What the
engine makes of all must not depend on who speaks first, how much at a time, or when prices are given.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phantora.hardware.topology import Flow
from phantora.sim.engine import library as native
from phantora.wire import layout
from tests.support.fakeranks import Bench, FakeRank

STREAMS = {0: "legacy", 8: "free", 9: "free", 10: "urgent", 11: "blocking"}
FULL = 10**6
CAP = 10e9  # bytes per s of a link
LATENCY = 500
SLICE = 3  # records that a rank says at once, at most
_TIMINGS = (
    native.Timing(launch_latency_ns=100, communication_start_ns=2000, filling_copy_bytes=4 << 20),
    native.Timing(
        launch_latency_ns=4500,
        kernel_gap_ns=1000,
        crowded_gap_ns=1500,
        communication_start_ns=2000,
        filling_copy_bytes=4 << 20,
    ),
)


@dataclass(frozen=True)
class Word:
    """One thing that a rank says, `after` ns after the one before."""

    kind: str
    after: int
    fields: dict[str, int]


@dataclass(frozen=True)
class Program:
    """Records of each rank, in order."""

    timing: int
    """Number of the timing of streams."""
    said: list[list[Word]]


class _Writer:
    def __init__(self, seed: int, world: int, most: int) -> None:
        self.chance = random.Random(seed)
        self.world = world
        self.said: list[list[Word]] = [[] for _ in range(world)]
        self.events = [[0] * 3 for _ in range(world)]
        self.timing = self.chance.randrange(len(_TIMINGS))
        self.coarse = self.chance.random() < 0.4  # much happens at the same moment
        for _ in range(self.chance.randint(5, most)):
            self.chance.choices(
                (self.kernels, self.copy, self.group, self.transfer, self.event, self.request), (5, 1, 3, 2, 2, 2)
            )[0]()

    def say(self, rank: int, kind: str, **fields: int) -> None:
        after = self.chance.choice((0, 0, 500, 1000, 3000) if self.coarse else (0, 0, 10, 100, 700, 3000))
        self.said[rank].append(Word(kind, after, fields))

    def size(self, most: int) -> int:
        """Size of a kernel or a copy, in ns."""
        return 500 * self.chance.randint(1, most // 500) if self.coarse else self.chance.randint(1, most)

    def stream(self) -> int:
        return self.chance.choice((0, 8, 8, 9, 9, 10, 11))

    def kernels(self) -> None:
        """One of its own, or one to three of an operator, whose price comes at the operator's end."""
        rank, chance = self.chance.randrange(self.world), self.chance
        operator = chance.random() < 0.6
        if operator:
            self.say(rank, "OP_BEGIN")
        for _ in range(chance.randint(1, 3) if operator else 1):
            blocks = chance.choice((1, 60, FULL, FULL))
            self.say(
                rank,
                "KERNEL",
                stream=self.stream(),
                name=self.size(6000),
                blocks=blocks,
                op=int(operator),
                library=chance.randrange(5) == 0,
            )
        if operator:
            self.say(rank, "OP_END")

    def copy(self) -> None:
        rank = self.chance.randrange(self.world)
        kind = self.chance.choice(("MEMCPY", "MEMSET", "HOST_FUNC"))
        size = self.size(4000)
        self.say(rank, kind, stream=self.stream(), **({"duration": size} if kind == "HOST_FUNC" else {"bytes": size}))

    def group(self) -> None:
        """A collective of all, or of the first two."""
        comm = self.chance.choice((1, 1, 2))
        stream, size = self.stream(), 4 * self.size(10_000)
        for rank in range(self.world if comm == 1 else 2):
            self.say(rank, "COLLECTIVE", id=comm, stream=stream, bytes=size, count=size // 4, dtype=7)

    def transfer(self) -> None:
        first = self.chance.randrange(self.world)
        second = (first + self.chance.randint(1, self.world - 1)) % self.world
        stream, size = self.stream(), 4 * self.size(10_000)
        for rank, kind, peer in ((first, "SEND", second), (second, "RECV", first)):
            self.say(rank, kind, id=1, stream=stream, peer=peer, bytes=size, count=size // 4, dtype=7)

    def event(self) -> None:
        rank, which = self.chance.randrange(self.world), self.chance.randrange(3)
        self.say(rank, "EVENT_RECORD", stream=self.stream(), id=1 + which)
        self.say(rank, "STREAM_WAIT", stream=self.stream(), id=1 + which)

    def request(self) -> None:
        rank, which = self.chance.randrange(self.world), self.chance.randrange(6)
        if which == 0:
            self.say(rank, "DEVICE_SYNC", device=0)
        elif which == 1:
            self.say(rank, "ROOM", stream=self.stream(), depth=self.chance.randint(1, 3))
        elif which < 4:
            self.say(rank, ("STREAM_SYNC", "STREAM_QUERY")[which - 2], stream=self.stream())
        else:
            self.say(rank, ("EVENT_SYNC", "EVENT_QUERY")[which - 4], id=self.chance.randint(1, 3))


def draw(seed: int, world: int, most: int = 25) -> Program:
    """A program of chance. Groups and transfers come in one order of the whole, so nobody waits for good."""
    writer = _Writer(seed, world, most)
    for rank in range(world):
        writer.say(rank, "RANK_EXIT")
    return Program(writer.timing, writer.said)


ASKS = ("DEVICE_SYNC", "ROOM", "STREAM_SYNC", "STREAM_QUERY", "EVENT_SYNC", "EVENT_QUERY")


class _Speaker:
    """A rank as it goes through its part: it waits where a real host would."""

    def __init__(self, rank: FakeRank, words: list[Word]) -> None:
        self.rank, self.left, self.waits, self.operators = rank, list(words), "", 0

    def may_speak(self) -> bool:
        if self.waits and self.rank.answer(self.waits) is None:
            return False
        self.waits = ""
        return bool(self.left)

    def speak(self) -> None:
        word, rank = self.left.pop(0), self.rank
        fields, at = dict(word.fields), rank.clock + word.after
        if word.kind in ("OP_BEGIN", "OP_END"):
            self.operators += word.kind == "OP_BEGIN"
            rank.emit(
                word.kind, op=self.operators, at=at, **({"id": 0, "start": at} if word.kind == "OP_BEGIN" else {})
            )
        elif word.kind == "KERNEL":
            self._kernel(at, fields)
        elif word.kind in ASKS:
            self.waits = "ask"
            rank.ask("ask", word.kind, at=at, **fields)
        else:
            rank.emit(word.kind, at=at, **fields)

    def _kernel(self, at: int, fields: dict[str, int]) -> None:
        flags = layout.Flag["PH_F_LIBRARY"] if fields["library"] else 0
        self.rank.emit(
            "KERNEL",
            id=self.rank.name(f"k:{fields['name']}"),
            stream=fields["stream"],
            at=at,
            flags=flags,
            op=self.operators if fields["op"] else 0,
            grid_x=fields["blocks"],
            grid_y=1,
            grid_z=1,
            block_x=1024,
            block_y=1,
            block_z=1,
        )


def _network(bench: Bench) -> None:
    """A port up and one down for each GPU, which everything shares."""
    links = [
        [
            bench.engine.add_link(CAP, bench.engine.intern(native.NAMES, f"{way}{rank.index}"), (rank.index,))
            for way in ("up", "down")
        ]
        for rank in bench.ranks
    ]

    def flows(request: native.PriceRequest) -> tuple[int, list[Flow]]:
        if request.kind == native.TRANSFER:
            pairs = [(request.src, request.dst)]
        else:
            members = bench.engine.comm_ranks(request.comm)
            pairs = [(rank, members[(place + 1) % len(members)]) for place, rank in enumerate(members)]
        return LATENCY, [
            Flow(src=a, dst=b, links=(links[a][0], links[b][1]), bytes=request.bytes, rate=CAP) for a, b in pairs
        ]

    bench.flows = flows


def played(library: Path, program: Program, order: int) -> list[dict[str, Any]]:
    """The log's rows when the ranks speak in an order of chance; 0: each says all that it can before the next."""
    chance = random.Random(order)
    bench = Bench.create(library, len(program.said))
    bench.engine.set_timing(_TIMINGS[program.timing])
    for own, rank in enumerate(bench.ranks):
        rank.communicator(1, len(bench.ranks), own)
        if own < 2:
            rank.communicator(2, 2, own, key=8)
        for number, kind in STREAMS.items():
            if number:
                rank.stream(number, priority=-1 if kind == "urgent" else 0, blocking=kind == "blocking")
    _network(bench)
    speakers = [_Speaker(rank, words) for rank, words in zip(bench.ranks, program.said, strict=True)]
    while any(speaker.left for speaker in speakers):
        ready = [speaker for speaker in speakers if speaker.may_speak()]
        if ready:
            speaker = chance.choice(ready) if order else ready[0]
            for _ in range(chance.randint(1, SLICE) if order else 10**6):
                if not speaker.may_speak():
                    break
                speaker.speak()
        if order and ready and chance.random() < 0.3:
            continue
        if order and chance.random() < 0.5:
            bench.engine.run(0)  # without prices
            continue
        bench.run()
        assert ready or any(speaker.may_speak() for speaker in speakers), bench.engine.diagnose()
    assert bench.run() & native.DONE, bench.engine.diagnose()
    assert bench.engine.status().late == 0
    return bench.rows()

"""Folded runs in the engine: what ranks that are no processes say, and folds that do not hold."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phantora.fold.ranges import format_ranks
from phantora.fold.syntax import parse_fold
from phantora.sim.engine import library as native
from phantora.wire import layout
from tests.support.fakeranks import Bench

GATHER, REDUCE = layout.Coll.ALL_GATHER, layout.Coll.ALL_REDUCE
UINT8, INT32, INT64, FLOAT32 = 1, 2, 4, 7


def folded(library: Path, axes: str = "dp=8", world: int = 8) -> Bench:
    return Bench.create(library, world, fold=parse_fold(axes, world))


def join_all(bench: Bench, world: int = 8) -> None:
    """All ranks make one communicator."""
    for rank in bench.ranks:
        rank.blob(b"all\0" + format_ranks(range(world)).encode())
        rank.communicator(1, world, rank.index)


def tell(bench: Bench, said: Callable[[int], bytes], dtype: int, coll: int, world: int = 8) -> int:
    join_all(bench, world)
    for rank in bench.ranks:
        data = said(rank.index)
        width = {UINT8: 1, INT32: 4, INT64: 8, FLOAT32: 4}[dtype]
        moved = len(data) * (world if coll == GATHER else 1)
        rank.blob(data)
        rank.emit("COLLECTIVE", id=1, coll=coll, dtype=dtype, count=len(data) // width, bytes=moved, ticket=5)
        rank.ask("bytes", "PAYLOAD", ticket=5)
    return bench.run()


def heard(bench: Bench) -> bytes:
    answers = {rank.payload("bytes") for rank in bench.ranks}
    assert len(answers) == 1
    return answers.pop()


def test_integers_that_grow_with_the_rank(engine_library: Path) -> None:
    bench = folded(engine_library)
    assert not tell(bench, lambda rank: struct.pack("<2q", 3 * rank - 5, 7), INT64, GATHER) & native.ERROR
    assert heard(bench) == b"".join(struct.pack("<2q", 3 * rank - 5, 7) for rank in range(8))


def test_integers_that_grow_along_each_axis(engine_library: Path) -> None:
    bench = folded(engine_library, "dp=4,tp=5", 20)
    said = lambda rank: struct.pack("<i", 1000 * (rank // 5) - 2 * (rank % 5))  # noqa: E731
    assert not tell(bench, said, INT32, GATHER, 20) & native.ERROR
    assert heard(bench) == b"".join(map(said, range(20)))


def test_sums_count_every_rank(engine_library: Path) -> None:
    bench = folded(engine_library)
    assert not tell(bench, lambda rank: struct.pack("<q", rank), INT64, REDUCE) & native.ERROR
    assert heard(bench) == struct.pack("<q", 28)
    bench = folded(engine_library)
    assert not tell(bench, lambda rank: struct.pack("<f", 1.5), FLOAT32, REDUCE) & native.ERROR
    assert heard(bench) == struct.pack("<f", 12.0)


def padded(value: object) -> bytes:
    return pickle.dumps(value, protocol=4).ljust(256, b"\0")


@pytest.mark.parametrize("axes,world", [("dp=8", 8), ("dp=1024", 1024)])
def test_pickled_objects_equal_but_for_their_integers(engine_library: Path, axes: str, world: int) -> None:
    def stated(rank: int) -> Any:
        return {"rank": rank, "port": 200 + 70 * rank, "down": -rank, "big": (1 << 33) + rank, "name": "w", "f": 0.5}

    bench = folded(engine_library, axes, world)
    assert not tell(bench, lambda rank: padded(stated(rank)), UINT8, GATHER, world) & native.ERROR
    # One reply contains the first 256 of them.
    answer = heard(bench)
    for rank in range(min(world, 256)):
        assert pickle.loads(answer[256 * rank : 256 * rank + 256]) == stated(rank)


def test_objects_that_differ_by_stage(engine_library: Path) -> None:
    """Each stage has a rule of its own; one with two processes is like the first."""

    def stated(rank: int) -> Any:
        stage, at = divmod(rank, 4)
        return ["first", "between", "last"][stage], at, [7 * stage]

    bench = folded(engine_library, "pp=3,dp=4", 12)
    assert not tell(bench, lambda rank: padded(stated(rank)), UINT8, GATHER, 12) & native.ERROR
    answer = heard(bench)
    assert [pickle.loads(answer[256 * rank : 256 * rank + 256]) for rank in range(12)] == [stated(r) for r in range(12)]


def test_the_first_rank_of_a_lone_axis_tells_reals_and_sums(engine_library: Path) -> None:
    bench = folded(engine_library, "dp=8:first")
    assert not tell(bench, lambda rank: struct.pack("<f", 1.5), FLOAT32, GATHER) & native.ERROR
    assert heard(bench) == struct.pack("<8f", *[1.5] * 8)
    bench = folded(engine_library, "dp=8:first")
    assert not tell(bench, lambda rank: struct.pack("<q", 5), INT64, REDUCE) & native.ERROR
    assert heard(bench) == struct.pack("<q", 40)
    for said, dtype in ((lambda rank: struct.pack("<q", 5), INT64), (lambda rank: padded([rank]), UINT8)):
        bench = folded(engine_library, "dp=8:first")
        assert tell(bench, said, dtype, GATHER) & native.ERROR
        assert "may grow with the rank" in bench.engine.error() and "--fold off" in bench.engine.error()


def test_the_only_process_of_a_stage_tells_reals_and_sums(engine_library: Path) -> None:
    """Its integers grow as those of the first stage do, if these do."""
    for said, dtype, total in (
        (lambda rank: struct.pack("<q", 100 * (rank // 4) ** 3 + rank % 4), INT64, 4 * 100 * 100 + 5 * 6),
        (lambda rank: struct.pack("<f", 1.5), FLOAT32, 30.0),
    ):
        bench = folded(engine_library, "pp=5,dp=4", 20)
        assert not tell(bench, said, dtype, REDUCE, 20) & native.ERROR
        assert heard(bench) == struct.pack("<q" if dtype == INT64 else "<f", total)
    bench = folded(engine_library, "pp=5,dp=4", 20)
    assert tell(bench, lambda rank: padded((rank // 4 == 2, rank)), UINT8, GATHER, 20) & native.ERROR
    assert "is a process, and one does not show the bytes of the others" in bench.engine.error()


@pytest.mark.parametrize(
    ("said", "dtype", "why"),
    [
        (lambda rank: struct.pack("<q", rank * rank), INT64, "do not grow evenly with the rank"),
        (lambda rank: struct.pack("<f", rank), FLOAT32, "numbers that differ and are no integers"),
        (lambda rank: padded({"name": f"worker {rank}"}), UINT8, "gives another object than rank 0"),
        (lambda rank: bytes([200 + rank] * 16), UINT8, "are no pickled object of integers and texts"),
    ],
)
def test_bytes_that_nobody_can_tell(engine_library: Path, said: Callable[[int], bytes], dtype: int, why: str) -> None:
    bench = folded(engine_library)
    assert tell(bench, said, dtype, GATHER) & native.ERROR
    assert bench.engine.error().startswith("cannot fold all_gather of")
    assert why in bench.engine.error() and "--real-ranks" in bench.engine.error()


def test_a_witness_may_do_what_either_end_does(engine_library: Path) -> None:
    bench = folded(engine_library)
    for rank in bench.ranks:
        rank.kernel("same:100")
        if rank.index == 0:
            rank.kernel("report:5")  # as ranks that log do
        rank.exit()
    assert bench.run() & native.DONE


@pytest.mark.parametrize("ends_early", [False, True])
def test_a_witness_unlike_both_ends_is_an_error(engine_library: Path, ends_early: bool) -> None:
    bench = folded(engine_library)
    for rank in bench.ranks:
        rank.kernel("same:100")
        if rank.index != 2 or not ends_early:
            rank.kernel("odd:7" if rank.index == 2 else "even:7", blocks=3)
        rank.exit()
    assert bench.run() & native.ERROR
    error = bench.engine.error()
    assert error.startswith("cannot fold the axis dp: rank 2 represents the ranks between 0 and 7 but matches nei")
    instead = "has ended" if ends_early else "launches odd:7"
    assert f"rank 0 launches even:7 of 3 blocks where rank 2 {instead}" in error


def test_a_send_to_a_folded_rank_takes_its_time(engine_library: Path) -> None:
    bench = folded(engine_library)
    join_all(bench)
    for rank in bench.ranks:
        rank.emit("GROUP_BEGIN", records=2, id=1)
        rank.transfer("SEND", 1, (rank.index + 1) % 8, 4000)
        rank.transfer("RECV", 1, (rank.index - 1) % 8, 4000)
        rank.exit()
    assert bench.run() & native.DONE
    spans = [row for row in bench.rows() if row["kind"] == "SENDRECV"]
    assert [row["rank"] for row in spans] == [0, 2, 7]
    assert {row["end"] - row["ready"] for row in spans} == {4000}

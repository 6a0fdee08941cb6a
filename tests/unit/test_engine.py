"""CUDA's ordering rules and the collectives' timing, on programs with fixed durations."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest

from phantora.sim.engine import library as native
from phantora.wire import layout
from tests.support.fakeranks import Bench, timing

D2H_PAGEABLE = layout.Copy.D2H_PAGEABLE
H2D_PINNED = layout.Copy.H2D_PINNED


Span = tuple[str, int, int]


def one(make: Callable[[int], Bench], program: Callable[[Bench], None], *kinds: str) -> list[Span]:
    bench = make(1)
    program(bench)
    bench.ranks[0].exit()
    bench.run()
    return bench.spans(*kinds)


def in_order(bench: Bench) -> None:
    rank = bench.ranks[0]
    rank.kernel("a:100", at=10)
    rank.kernel("b:50", at=20)


def gap_of_the_host(bench: Bench) -> None:
    rank = bench.ranks[0]
    rank.kernel("a:100", at=0)
    rank.kernel("b:50", at=500)


def small_kernels_overlap(bench: Bench) -> None:
    rank = bench.ranks[0]
    rank.stream(8)
    rank.kernel("a:100", blocks=10, at=0)
    rank.kernel("b:100", stream=8, blocks=10, at=20)


def full_kernels_take_turns(bench: Bench) -> None:
    rank = bench.ranks[0]
    rank.stream(8)
    rank.kernel("a:100", at=0)
    rank.kernel("b:100", stream=8, at=20)


def priority_goes_first(bench: Bench) -> None:
    rank = bench.ranks[0]
    rank.stream(8, priority=-1)
    rank.kernel("a:100", at=0)
    rank.kernel("b:100", stream=8, at=20)


def legacy_waits_for_blocking_streams(bench: Bench) -> None:
    rank = bench.ranks[0]
    rank.stream(8, blocking=True)
    rank.kernel("a:100", stream=8, blocks=1, at=0)
    rank.kernel("b:10", stream=0, blocks=1, at=1)
    rank.kernel("c:10", stream=8, blocks=1, at=2)


def legacy_ignores_non_blocking(bench: Bench) -> None:
    rank = bench.ranks[0]
    rank.stream(8)
    rank.kernel("a:100", stream=8, blocks=1, at=0)
    rank.kernel("b:10", stream=0, blocks=1, at=1)


def event_orders_streams(bench: Bench) -> None:
    rank = bench.ranks[0]
    rank.stream(8)
    rank.kernel("a:100", blocks=1, at=0)
    rank.emit("EVENT_RECORD", id=1)
    rank.kernel("b:100", blocks=1)
    rank.emit("STREAM_WAIT", id=1, stream=8)
    rank.kernel("c:10", stream=8, blocks=1, at=5)


def wait_uses_the_record_of_its_time(bench: Bench) -> None:
    rank = bench.ranks[0]
    rank.stream(8)
    rank.kernel("a:100", blocks=1, at=0)
    rank.emit("EVENT_RECORD", id=1)
    rank.emit("STREAM_WAIT", id=1, stream=8)
    rank.kernel("b:100", blocks=1)
    rank.emit("EVENT_RECORD", id=1)  # does not move the wait above
    rank.kernel("c:10", stream=8, blocks=1)


def wait_for_a_fresh_event_is_nothing(bench: Bench) -> None:
    rank = bench.ranks[0]
    rank.stream(8)
    rank.kernel("a:100", blocks=1, at=0)
    rank.emit("STREAM_WAIT", id=1, stream=8)
    rank.kernel("c:10", stream=8, blocks=1)


def copies_of_one_direction_take_turns(bench: Bench) -> None:
    rank = bench.ranks[0]
    rank.stream(8)
    rank.stream(9)
    rank.emit("MEMCPY", id=H2D_PINNED, bytes=100, stream=8, at=0)
    rank.emit("MEMCPY", id=H2D_PINNED, bytes=100, stream=9, at=0)
    rank.emit("MEMCPY", id=D2H_PAGEABLE, bytes=100, stream=0, at=0)


H2D = "Memcpy HtoD (Pinned -> Device)"
D2H = "Memcpy DtoH (Device -> Pageable)"
PROGRAMS: list[tuple[Callable[[Bench], None], tuple[str, ...], list[Span]]] = [
    (in_order, ("KERNEL",), [("a:100", 10, 110), ("b:50", 110, 160)]),
    (gap_of_the_host, ("KERNEL",), [("a:100", 0, 100), ("b:50", 500, 550)]),
    (small_kernels_overlap, ("KERNEL",), [("a:100", 0, 100), ("b:100", 20, 120)]),
    (full_kernels_take_turns, ("KERNEL",), [("a:100", 0, 100), ("b:100", 100, 200)]),
    (priority_goes_first, ("KERNEL",), [("b:100", 20, 120), ("a:100", 0, 200)]),
    (legacy_waits_for_blocking_streams, ("KERNEL",), [("a:100", 0, 100), ("b:10", 100, 110), ("c:10", 110, 120)]),
    (legacy_ignores_non_blocking, ("KERNEL",), [("b:10", 1, 11), ("a:100", 0, 100)]),
    (event_orders_streams, ("KERNEL",), [("c:10", 100, 110), ("b:100", 100, 200)]),
    (wait_uses_the_record_of_its_time, ("KERNEL",), [("c:10", 100, 110), ("b:100", 100, 200)]),
    (wait_for_a_fresh_event_is_nothing, ("KERNEL",), [("c:10", 0, 10), ("a:100", 0, 100)]),
    (copies_of_one_direction_take_turns, ("MEMCPY",), [(H2D, 0, 100), (D2H, 0, 100), (H2D, 100, 200)]),
]


@pytest.mark.parametrize(("program", "kinds", "expected"), PROGRAMS, ids=[p[0].__name__ for p in PROGRAMS])
def test_streams(
    make: Callable[[int], Bench], program: Callable[[Bench], None], kinds: tuple[str, ...], expected: list[Span]
) -> None:
    spans = one(make, program, *kinds)
    if program in (event_orders_streams, wait_uses_the_record_of_its_time):
        spans = [span for span in spans if span[0] != "a:100"]
    assert spans == expected


def test_device_sync_returns_at_the_end_of_all_streams(make: Callable[[int], Bench]) -> None:
    bench = make(1)
    rank = bench.ranks[0]
    rank.stream(8)
    rank.kernel("a:300", blocks=1, at=0)
    rank.kernel("b:100", stream=8, blocks=1, at=0)
    rank.ask("sync", "DEVICE_SYNC", at=40)
    bench.run()
    assert rank.answer("sync") == (0, 300)
    rank.ask("again", "DEVICE_SYNC", at=700)
    bench.run()
    assert rank.answer("again") == (0, 700)


def test_who_launches_waits_for_room(make: Callable[[int], Bench]) -> None:
    """Until no stream has more than two commands that are not done."""
    bench = make(1)
    rank = bench.ranks[0]
    rank.stream(8)
    for name in ("a:100", "b:200", "c:300", "d:400"):
        rank.kernel(name, blocks=1, at=0)
    rank.kernel("e:5000", stream=8, blocks=1, at=0)
    rank.ask("room", "ROOM", at=40, depth=2)
    bench.run()
    assert rank.answer("room") == (0, 300)  # a and b are done
    rank.ask("more", "ROOM", at=700, depth=2)
    bench.run()
    assert rank.answer("more") == (0, 700)


def test_event_sync_waits_for_its_record_only(make: Callable[[int], Bench]) -> None:
    bench = make(1)
    rank = bench.ranks[0]
    rank.kernel("a:100", at=0)
    rank.emit("EVENT_RECORD", id=3)
    rank.kernel("b:900")
    rank.ask("event", "EVENT_SYNC", id=3)
    bench.run()
    assert rank.answer("event") == (0, 100)
    rank.ask("time", "EVENT_TIME", id=3)
    bench.run()
    assert rank.answer("time") == (0, 100)


@pytest.mark.parametrize("followed", [True, False])
def test_a_wait_for_an_event_has_its_row_though_that_was_done(make: Callable[[int], Bench], followed: bool) -> None:
    """However far the GPU had been followed when the host asked."""
    bench = make(1)
    rank = bench.ranks[0]
    rank.kernel("k:100", at=0)
    rank.emit("EVENT_RECORD", id=1)
    rank.emit("MEMORY", at=500)
    if followed:
        bench.run()
    rank.ask("sync", "EVENT_SYNC", id=1, at=500)
    bench.run()
    assert rank.answer("sync") == (0, 500)
    assert [(row["start"], row["end"]) for row in bench.rows() if row["kind"] == "SYNC"] == [(500, 500)]


def test_a_brief_log_leaves_out_memory_and_events(make: Callable[[int], Bench]) -> None:
    logs = []
    for brief in (False, True):
        bench = make(1)
        if brief:
            bench.engine.log_briefly()
        rank = bench.ranks[0]
        rank.kernel("k:100", at=0)
        rank.emit("EVENT_RECORD", id=1)
        rank.emit("STREAM_WAIT", stream=8, id=1)
        rank.kernel("k:100", stream=8, at=10)
        rank.emit("MEMORY", at=500)
        rank.exit()
        bench.run()
        logs.append(bench.rows())
    whole, short = logs
    assert {row["kind"] for row in whole} >= {"KERNEL", "RECORD", "WAIT", "MEMORY"}
    assert short == [row for row in whole if row["kind"] not in ("RECORD", "WAIT", "MEMORY")]


def test_query_in_a_loop_turns_ready_at_the_right_time(make: Callable[[int], Bench]) -> None:
    bench = make(1)
    rank = bench.ranks[0]
    rank.kernel("a:100", at=0)
    answers = []
    for at in range(10, 150, 30):
        rank.ask(f"q{at}", "STREAM_QUERY", at=at)
        bench.run()
        answer = rank.answer(f"q{at}")
        assert answer is not None
        answers.append((at, answer[0]))
    assert answers == [(10, 1), (40, 1), (70, 1), (100, 0), (130, 0)]


def test_sync_copy_blocks_the_host_until_it_is_done(make: Callable[[int], Bench]) -> None:
    bench = make(1)
    rank = bench.ranks[0]
    rank.kernel("a:100", at=0)
    rank.ask("copy", "MEMCPY", id=D2H_PAGEABLE, bytes=20)
    bench.run()
    assert rank.answer("copy") == (0, 120)


def test_a_running_host_holds_its_gpu_back(make: Callable[[int], Bench]) -> None:
    """A later launch could still contend: nothing after the host's clock is final."""
    bench = make(1)
    rank = bench.ranks[0]
    rank.stream(8)
    rank.kernel("a:100", at=0)
    bench.run()
    assert bench.rows(everything=False) == []
    rank.kernel("b:100", stream=8, at=20)
    rank.exit()
    bench.run()
    assert bench.spans() == [("a:100", 0, 100), ("b:100", 100, 200)]


def test_collective_starts_when_the_last_rank_arrives(make: Callable[[int], Bench]) -> None:
    bench = make(2)
    for index, rank in enumerate(bench.ranks):
        rank.communicator(1, 2, index)
        rank.kernel(f"k:{100 + 200 * index}", at=0)
        rank.collective(1, 40)
        rank.exit()
    bench.run()
    rows = [row for row in bench.rows() if row["kind"] == "COLLECTIVE"]
    spans = [(row["rank"], row["start"], row["ready"], row["end"]) for row in rows]
    assert spans == [(0, 100, 300, 340), (1, 300, 300, 340)]


def test_kernels_next_to_a_collective_are_slower(make: Callable[[int], Bench]) -> None:
    bench = make(2)
    bench.profile = native.KernelProfile(interference=1.0, interference_behind=2.0, clock=1.0)
    for index, rank in enumerate(bench.ranks):
        rank.communicator(1, 2, index)
        rank.stream(8, priority=-1)
        rank.collective(1, 100, stream=8, at=0)
        rank.kernel("k:100", at=0)
        rank.exit()
    bench.run()
    assert [row["end"] for row in bench.rows() if row["kind"] == "KERNEL"] == [150, 150]  # 50 of it at half speed


def one_collective_waits(make: Callable[[int], Bench]) -> Bench:
    """Rank 0 waits for its compute stream; rank 1, which could still arrive, has not called a collective of both."""
    bench = make(2)
    zero = bench.ranks[0]
    for index, rank in enumerate(bench.ranks):
        rank.communicator(1, 2, index)
        rank.stream(8, priority=-1)
    zero.collective(1, 40, stream=8, at=0)
    zero.kernel("k:100", at=0)
    zero.ask("sync", "STREAM_SYNC", stream=0)
    bench.run()
    assert zero.answer("sync") is None
    return bench


def test_blocked_host_resumes_while_a_collective_spins(make: Callable[[int], Bench]) -> None:
    """Rank 0 waits for its compute stream; its collective waits for rank 1, which is far ahead in time."""
    bench = one_collective_waits(make)
    zero, one_ = bench.ranks
    one_.kernel("z:1", at=5000)
    bench.run()
    assert zero.answer("sync") == (0, 100)
    one_.collective(1, 40, stream=8)
    one_.exit()
    zero.exit()
    bench.run()
    rows = [row for row in bench.rows() if row["kind"] == "COLLECTIVE"]
    assert [(row["start"], row["end"]) for row in rows] == [(0, 5040), (5000, 5040)]


def test_two_ranks_waiting_across_two_groups_do_not_creep(make: Callable[[int], Bench]) -> None:
    """Each rank spins in a collective that the other reaches only later, on another stream."""
    bench = make(2)
    for index, rank in enumerate(bench.ranks):
        rank.communicator(1, 2, index, key=1)
        rank.communicator(2, 2, index, key=2)
        rank.stream(8)
        rank.stream(9)
        first, second = (1, 2) if index == 0 else (2, 1)
        rank.collective(first, 10, stream=8, at=0)
        rank.kernel("k:1000000", stream=9, at=0)
        rank.collective(second, 10, stream=9)
        rank.ask("sync", "DEVICE_SYNC")
    bench.run()
    assert [rank.answer("sync") for rank in bench.ranks] == [(0, 1000010), (0, 1000010)]


@pytest.mark.parametrize("recv_first", [False, True])
def test_grouped_sends_and_receives_meet_in_either_order(make: Callable[[int], Bench], recv_first: bool) -> None:
    bench = make(2)
    for index, rank in enumerate(bench.ranks):
        rank.communicator(1, 2, index)
        rank.emit("GROUP_BEGIN", records=2, at=100 * index)
        order = ("RECV", "SEND") if recv_first and index else ("SEND", "RECV")
        for kind in order:
            rank.transfer(kind, 1, 1 - index, 40)
        rank.exit()
    bench.run()
    rows = [row for row in bench.rows() if row["kind"] == "SENDRECV"]
    assert [(row["rank"], row["start"], row["end"]) for row in rows] == [(0, 0, 140), (1, 100, 140)]


def test_sends_match_receives_in_order(make: Callable[[int], Bench]) -> None:
    bench = make(2)
    sender, receiver = bench.ranks
    for index, rank in enumerate(bench.ranks):
        rank.communicator(1, 2, index)
    sender.transfer("SEND", 1, 1, 40, at=0)
    sender.transfer("SEND", 1, 1, 80, at=0)
    receiver.transfer("RECV", 1, 0, 40, at=10)
    receiver.transfer("RECV", 1, 0, 80, at=10)
    for rank in bench.ranks:
        rank.exit()
    bench.run()
    ends = [(row["rank"], row["start"], row["end"]) for row in bench.rows() if row["kind"] == "SENDRECV"]
    assert ends == [(0, 0, 50), (1, 10, 50), (0, 50, 130), (1, 50, 130)]


def buffered(make: Callable[[int], Bench], nbytes: int) -> Bench:
    """Both ranks send first, then receive; NCCL's buffers take 100 bytes."""
    bench = make(2)
    given = timing()
    given.send_buffer_bytes = 100
    bench.engine.set_timing(given)
    for index, rank in enumerate(bench.ranks):
        rank.communicator(1, 2, index)
        rank.transfer("SEND", 1, 1 - index, nbytes, at=10 * index)
        rank.transfer("RECV", 1, 1 - index, nbytes)
        rank.ask("sync", "DEVICE_SYNC")
    bench.run()
    return bench


def test_a_send_that_fits_into_the_buffers_ends_without_a_receive(make: Callable[[int], Bench]) -> None:
    bench = buffered(make, 100)
    assert [rank.answer("sync") for rank in bench.ranks] == [(0, 210), (0, 210)]
    assert bench.engine.status().late == 0
    for rank in bench.ranks:
        rank.exit()
    bench.run()
    ends = sorted((row["rank"], row["start"], row["end"]) for row in bench.rows() if row["kind"] == "SENDRECV")
    assert ends == [(0, 0, 100), (0, 100, 210), (1, 10, 110), (1, 110, 210)]


def test_a_larger_send_waits_for_its_receive(make: Callable[[int], Bench]) -> None:
    bench = buffered(make, 104)
    assert [rank.answer("sync") for rank in bench.ranks] == [None, None]
    assert "waits to send 104 bytes" in bench.engine.diagnose()


def test_behind_a_group_that_is_not_whole_nobody_runs_ahead(make: Callable[[int], Bench]) -> None:
    """1 waits for what 0 sends after a collective with 2, of which nobody knows yet that it is 2."""
    bench = make(3)
    first, second, late = bench.ranks
    first.communicator(1, 2, 0, key=1)
    first.communicator(2, 2, 0, key=2)
    second.communicator(2, 2, 1, key=2)
    first.collective(1, 10, at=0)
    first.ask("sync", "DEVICE_SYNC")
    second.transfer("RECV", 2, 0, 40, at=0)
    second.ask("sync", "DEVICE_SYNC")
    bench.run()
    assert first.answer("sync") is None and second.answer("sync") is None
    late.communicator(1, 2, 1, key=1)
    late.collective(1, 10, at=500)
    late.exit()
    bench.run()
    assert first.answer("sync") == (0, 510)
    first.transfer("SEND", 2, 1, 40)
    first.exit()
    bench.run()
    assert second.answer("sync") == (0, 550)
    assert bench.engine.status().late == 0


def test_mismatched_sizes_name_both_ranks(make: Callable[[int], Bench]) -> None:
    bench = make(2)
    for index, rank in enumerate(bench.ranks):
        rank.communicator(1, 2, index)
        rank.collective(1, 40 + 4 * index)
    assert bench.run() & native.ERROR
    text = bench.engine.error()
    assert "rank 0 calls all_reduce of 10 float32" in text
    assert "rank 1 calls all_reduce of 11 float32" in text


def test_missing_rank_is_named(make: Callable[[int], Bench]) -> None:
    bench = make(3)
    for index, rank in enumerate(bench.ranks):
        rank.communicator(1, 3, index)
        if index != 2:
            rank.collective(1, 40)
            rank.ask("sync", "DEVICE_SYNC")
    bench.ranks[2].exit()
    bench.run()
    text = bench.engine.diagnose()
    assert "rank 0 waits in all_reduce of 10 float32, sequence number 0" in text
    assert "not there: rank 2" in text
    assert "rank 2 has exited with status 0" in text


def test_small_payloads_are_carried_and_reduced(make: Callable[[int], Bench]) -> None:
    bench = make(3)
    for index, rank in enumerate(bench.ranks):
        rank.communicator(1, 3, index)
        rank.collective(1, 8, data=struct.pack("<2f", index, 10 * index), ticket=5)
        rank.ask("bytes", "PAYLOAD", ticket=5)
    bench.run()
    for rank in bench.ranks:
        assert struct.unpack("<2f", rank.payload("bytes")) == (3.0, 30.0)


def test_exchange_returns_all_parts_in_order(make: Callable[[int], Bench]) -> None:
    bench = make(2)
    for index, rank in enumerate(bench.ranks):
        rank.blob(b"x" * (index + 1))
        rank.ask("all", "EXCHANGE", key_hi=1, key_lo=2, members=2, ticket=9, index=index, at=100 * (index + 1))
        bench.run()
    expected = struct.pack("<I", 1) + b"x" + struct.pack("<I", 2) + b"xx"
    for rank in bench.ranks:
        assert rank.answer("all") == (0, 200)
        assert rank.payload("all") == expected


def test_waits_begun_together_are_logged_in_the_order_of_their_ends(make: Callable[[int], Bench]) -> None:
    """Rank 0 makes two communicators in a group; that with rank 1 is known first and ends last."""
    bench = make(3)
    zero, one_, two = bench.ranks
    zero.ask("late", "EXCHANGE", key_hi=1, key_lo=1, members=2, ticket=5, index=0, at=10)
    zero.ask("early", "EXCHANGE", key_hi=2, key_lo=2, members=2, ticket=6, index=0, at=10)
    one_.ask("all", "EXCHANGE", key_hi=1, key_lo=1, members=2, ticket=7, index=1, at=600)
    bench.run()
    two.ask("all", "EXCHANGE", key_hi=2, key_lo=2, members=2, ticket=8, index=1, at=300)
    bench.run()
    two.ask("sync", "STREAM_SYNC", stream=0, at=450)
    bench.run()
    two.control["clock"] = 500
    bench.run()
    rows = bench.rows(everything=False)
    assert {row["end"] for row in rows} >= {300, 450}
    rows += bench.rows()
    assert zero.answer("late") == (0, 600) and zero.answer("early") == (0, 300)
    assert [row["end"] for row in rows] == sorted(row["end"] for row in rows)


def test_asleep_ranks_are_released_and_moved_forward(make: Callable[[int], Bench]) -> None:
    """Rank 1 sleeps outside CUDA for something that rank 0 does after its wait."""
    bench = one_collective_waits(make)
    zero, one_ = bench.ranks
    assert bench.engine.release_sleepers([1])
    assert zero.answer("sync") == (0, 100)
    assert int(one_.control["floor"][0]) == 100
    one_.kernel("k:1", at=130)
    for rank in bench.ranks:
        rank.exit()
    bench.run()
    (row,) = (row for row in bench.rows() if row["name"] == "outside CUDA")
    assert (row["rank"], row["start"], row["end"], row["last_rank"]) == (1, 0, 100, 0)


def test_a_sleep_is_logged_in_order_though_the_rank_went_on_in_silence(make: Callable[[int], Bench]) -> None:
    """Rank 1 says nothing for long after it was moved: only its clock goes on, and rank 0 far beyond."""
    bench = one_collective_waits(make)
    zero, one_ = bench.ranks
    assert bench.engine.release_sleepers([1])
    one_.control["clock"] = 3000
    zero.kernel("k:50", at=200)
    zero.ask("later", "STREAM_SYNC", stream=0, at=300)
    bench.run()
    rows = bench.rows(everything=False)
    one_.kernel("k:1", at=3000)
    for rank in bench.ranks:
        rank.exit()
    bench.run()
    rows += bench.rows()
    assert [row["end"] for row in rows] == sorted(row["end"] for row in rows)
    assert "outside CUDA" in [row["name"] for row in rows]


def test_a_query_that_finds_nothing_done_is_an_answer(make: Callable[[int], Bench]) -> None:
    """Rank 1 waits for bytes at 10, which holds back the others; the first answer is that to rank 0's query."""
    bench = make(3)
    zero, one_, two = bench.ranks
    for index, rank in enumerate(bench.ranks):
        rank.communicator(1, 3, index)
        rank.stream(8)
    one_.ask("bytes", "PAYLOAD", ticket=5, at=10)
    for rank in (zero, two):
        rank.collective(1, 40, stream=8, at=0)
        rank.kernel("k:800", blocks=1, at=0)
        rank.emit("EVENT_RECORD", id=1)
    zero.ask("query", "EVENT_QUERY", id=1, at=500)
    two.ask("sync", "STREAM_SYNC", stream=0)
    bench.run()
    assert zero.answer("query") is None
    assert bench.engine.release_sleepers([])
    assert zero.answer("query") == (1, -1) and two.answer("sync") is None
    assert int(one_.control["floor"][0]) == 500
    zero.exit()
    assert bench.engine.release_sleepers([])
    assert two.answer("sync") == (0, 800)
    two.exit()
    one_.collective(1, 40, stream=8, at=900)
    one_.exit()
    bench.run()
    assert bench.engine.status().late == 0


def test_who_waits_for_room_does_without_in_the_end(make: Callable[[int], Bench]) -> None:
    """Rank 0's queue waits for rank 1, which waits for the bytes of what rank 0 would do next."""
    bench = make(2)
    zero, one_ = bench.ranks
    for index, rank in enumerate(bench.ranks):
        rank.communicator(1, 2, index, key=1)
        rank.communicator(2, 2, index, key=2)
    zero.collective(1, 40, at=0)
    zero.kernel("k:100")
    zero.ask("room", "ROOM", at=30, depth=1)
    one_.collective(2, 4, data=b"abcd", ticket=5, at=20)
    one_.ask("bytes", "PAYLOAD", ticket=5)
    bench.run()
    assert not bench.engine.release_sleepers([]) and zero.answer("room") is None
    assert bench.engine.give_room() and zero.answer("room") == (0, 30)
    assert not bench.engine.give_room()


def by_name(bench: Bench) -> dict[str, dict[str, Any]]:
    """The last row of each name."""
    return {row["name"]: row for row in bench.rows()}


def test_rows_name_what_the_host_waited_for(make: Callable[[int], Bench]) -> None:
    bench = make(1)
    rank = bench.ranks[0]
    for stream in (8, 9):
        rank.stream(stream)
    rank.kernel("a:10", stream=9, blocks=1, at=0)
    rank.kernel("b:300", stream=8, blocks=1)
    rank.kernel("c:100", blocks=1)
    rank.ask("device", "DEVICE_SYNC", at=40)
    bench.run()
    rank.kernel("d:50", blocks=1, at=400)
    rank.emit("EVENT_RECORD", id=1)
    rank.kernel("e:10", blocks=1)
    rank.ask("event", "EVENT_SYNC", id=1)
    bench.run()
    rank.exit()
    bench.run()
    rows = by_name(bench)
    assert rows["cudaDeviceSynchronize"]["link"] == rows["b:300"]["id"]
    assert rows["cudaDeviceSynchronize"]["end"] == rows["b:300"]["end"] == 300
    assert rows["cudaEventSynchronize"]["link"] == rows["cudaEventRecord"]["id"]
    assert rows["cudaEventSynchronize"]["end"] == rows["cudaEventRecord"]["end"] == rows["d:50"]["end"]


def test_rows_name_the_member_that_came_last(make: Callable[[int], Bench]) -> None:
    bench = make(3)
    for index, rank in enumerate(bench.ranks):
        rank.communicator(1, 3, index)
        rank.kernel(f"own:{(100, 500, 50)[index]}", at=0)
        rank.collective(1, 40)
    for index in (0, 1):
        bench.ranks[index].transfer(("SEND", "RECV")[index], 1, 1 - index, 60, at=1000 * (2 - index))
    for rank in bench.ranks:
        rank.exit()
    bench.run()
    rows = bench.rows()
    last = next(row for row in rows if row["kind"] == "COLLECTIVE" and row["rank"] == 1)
    for row in rows:
        if row["kind"] == "COLLECTIVE":
            assert (row["ready"], row["last_rank"], row["last_id"]) == (500, 1, last["id"])
    sender = next(row for row in rows if row["kind"] == "SENDRECV" and row["rank"] == 0)
    for row in rows:
        if row["kind"] == "SENDRECV":
            assert (row["ready"], row["last_rank"], row["last_id"]) == (2000, 0, sender["id"])


def test_waits_for_the_default_stream_have_a_row_if_they_delay(make: Callable[[int], Bench]) -> None:
    bench = make(1)
    rank = bench.ranks[0]
    rank.stream(8, blocking=True)
    rank.kernel("a:100", stream=8, blocks=1, at=0)
    rank.kernel("b:10", stream=0, blocks=1, at=1)
    rank.kernel("c:10", stream=8, blocks=1, at=500)
    rank.exit()
    bench.run()
    rows = bench.rows()
    a = next(row for row in rows if row["name"] == "a:100")
    (wait,) = (row for row in rows if row["kind"] == "WAIT")
    assert (wait["stream"], wait["start"], wait["end"], wait["id"], wait["link"]) == (0, 1, 100, -1, a["id"])


def test_an_exchange_names_the_host_that_came_last(make: Callable[[int], Bench]) -> None:
    bench = make(2)
    for index, rank in enumerate(bench.ranks):
        rank.ask("all", "EXCHANGE", key_hi=1, key_lo=2, members=2, ticket=9, index=index, at=100 * (index + 1))
    bench.run()
    found = [(row["rank"], row["start"], row["end"], row["last_rank"]) for row in bench.rows()]
    assert found == [(0, 100, 200, 1), (1, 200, 200, 1)]


def test_log_order_does_not_depend_on_who_ran_first(make: Callable[[int], Bench]) -> None:
    def program(rank: int, bench: Bench) -> list[Callable[[], object]]:
        r = bench.ranks[rank]
        steps: list[Callable[[], object]] = [lambda: r.communicator(1, 3, rank), lambda: r.stream(8)]
        for round_ in range(5):
            duration = 50 + 37 * (rank * 5 + round_) % 90
            steps.append(lambda duration=duration: r.kernel(f"k:{duration}", at=r.clock + 7))  # type: ignore[misc]
            steps.append(lambda: r.collective(1, 40, stream=8, at=r.clock + 3))
        return [*steps, r.exit]

    logs = []
    for seed in range(5):
        bench = make(3)
        chooser = random.Random(seed)
        queues = [program(rank, bench) for rank in range(3)]
        while any(queues):
            queue = chooser.choice([q for q in queues if q])
            queue.pop(0)()
            if chooser.random() < 0.5:
                bench.run()
        bench.run()
        logs.append(bench.rows())
    assert all(a == b for a, b in itertools.pairwise(logs))
    assert len([row for row in logs[0] if row["kind"] == "KERNEL"]) == 15

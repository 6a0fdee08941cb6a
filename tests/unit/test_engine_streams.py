"""Many streams on one GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from phantora.wire import layout
from tests.support.fakeranks import Bench


@pytest.mark.parametrize("streams", [64, 65, 200])
def test_any_number_of_streams_share_a_gpu(make: Callable[[int], Bench], streams: int) -> None:
    """Each kernel takes a block, and there is room for 200 of them: all begin when they are launched."""
    bench = make(1)
    (rank,) = bench.ranks
    for number in range(streams):
        rank.stream(8 + number)
        rank.kernel(f"k{number}:1000", stream=8 + number, blocks=1, at=0)
    rank.exit()
    bench.run()
    assert {span[1:] for span in bench.spans()} == {(0, 1000)}
    assert bench.engine.status().late == 0


@pytest.mark.parametrize("streams", [65, 200])
def test_many_streams_take_turns_on_a_full_gpu(make: Callable[[int], Bench], streams: int) -> None:
    bench = make(1)
    (rank,) = bench.ranks
    for number in range(streams):
        rank.stream(8 + number)
        rank.kernel(f"k{number}:1000", stream=8 + number, at=0)
    rank.exit()
    bench.run()
    assert sorted(span[1:] for span in bench.spans()) == [(1000 * n, 1000 * n + 1000) for n in range(streams)]


def test_copies_of_many_streams_share_the_engine_of_their_direction(make: Callable[[int], Bench]) -> None:
    bench = make(1)
    (rank,) = bench.ranks
    for number in range(80):
        rank.stream(8 + number)
        direction = layout.Copy.H2D_PINNED if number % 2 else layout.Copy.D2H_PAGEABLE
        rank.emit("MEMCPY", id=direction, bytes=100, stream=8 + number, at=0)
    rank.exit()
    bench.run()
    ends = sorted(end for _, _, end in bench.spans("MEMCPY"))
    assert ends == sorted([100 * (n + 1) for n in range(40)] * 2)


def test_the_rows_of_a_rank_with_two_gpus_are_in_the_order_of_their_ends(make: Callable[[int], Bench]) -> None:
    """Each GPU goes on by itself: the first has ended its kernels before the second begins."""
    bench = make(1)
    (rank,) = bench.ranks
    for device in range(2):
        rank.emit("STREAM_CREATE", stream=8 + device, device=device, flags=layout.Flag["PH_F_NONBLOCKING"])
    for number in range(3):
        for device in range(2):
            rank.kernel(f"gpu{device} k{number}:{1000 + device}", stream=8 + device, at=0)
    rank.exit()
    bench.run()
    ends = [end for _, _, end in bench.spans()]
    assert ends == sorted(ends) and len(ends) == 6


def queued(make: Callable[[int], Bench], queues: int) -> list[tuple[str, int, int]]:
    """Four kernels on one stream, then four on another: all fit on the GPU side by side."""
    bench = make(1)
    rank = bench.ranks[0]
    for stream in (8, 9):
        rank.emit("STREAM_CREATE", stream=stream, flags=layout.Flag["PH_F_NONBLOCKING"], queues=queues)
    for stream in (8, 9):
        for part in range(4):
            rank.kernel(f"{stream}.{part}:100", stream=stream, blocks=10, at=0)
    rank.exit()
    bench.run()
    return bench.spans("KERNEL")


def test_streams_that_share_a_hardware_queue_begin_in_the_order_of_launches(make: Callable[[int], Bench]) -> None:
    """As measured on an H200 with CUDA_DEVICE_MAX_CONNECTIONS=1: 8.9 ms where two queues take 5.1."""
    assert max(end for _, _, end in queued(make, 0)) == 400
    spans = {name: (start, end) for name, start, end in queued(make, 1)}
    assert spans["9.0:100"] == (300, 400) and spans["9.3:100"] == (600, 700)


@pytest.mark.parametrize("kernel_behind, start", [(False, 0), (True, 100)])
def test_an_event_alone_holds_no_hardware_queue_up(
    make: Callable[[int], Bench], kernel_behind: bool, start: int
) -> None:
    """As measured on an H200: a third stream starts at once, but not behind a kernel that waits."""
    bench = make(1)
    rank = bench.ranks[0]
    for stream in (7, 8, 9):
        rank.emit("STREAM_CREATE", stream=stream, flags=layout.Flag["PH_F_NONBLOCKING"], queues=1)
    rank.kernel("long:100", stream=7, blocks=10, at=0)
    rank.emit("EVENT_RECORD", stream=7, id=1, at=0)
    rank.emit("STREAM_WAIT", stream=8, id=1, at=0)
    if kernel_behind:
        rank.kernel("waits:10", stream=8, blocks=10, at=0)
    rank.kernel("third:10", stream=9, blocks=10, at=0)
    rank.exit()
    bench.run()
    assert {name: begun for name, begun, _ in bench.spans("KERNEL")}["third:10"] == start

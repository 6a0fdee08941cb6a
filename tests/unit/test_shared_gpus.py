"""Several processes on one GPU: time slices, MPS, memory, places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from phantora.errors import PhantoraError
from phantora.runs.prepare import prepare
from phantora.sim.engine import library as native
from phantora.spec import COMMAND, FoldSpec, LaunchSpec, OutputSpec, RunSpec
from phantora.wire import layout
from phantora.wire.places import Places
from tests.support.fakeranks import Bench

SLICE, SWITCH = 1000, 100


@pytest.fixture
def make(engine_library: Path) -> Callable[..., Bench]:
    """Ranks on one GPU of 100 bytes."""

    def made(ranks: int = 2, mps: bool = False, speak: bool = True) -> Bench:
        places = Places(ranks, 1, mps)
        bench = Bench.create(engine_library, ranks, places=places, memory=100, speak=speak)
        bench.engine.set_timing(native.Timing(time_slice_ns=SLICE, context_switch_ns=SWITCH, filling_copy_bytes=1))
        return bench

    return made


def spans(bench: Bench, *kinds: str) -> dict[str, tuple[int, int]]:
    for rank in bench.ranks:
        rank.exit()
    bench.run()
    assert bench.engine.status().late == 0
    return {name: (start, end) for name, start, end in bench.spans(*kinds)}


def test_kernels_of_two_processes_take_turns(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.ranks[0].kernel("a:2500", at=0)
    bench.ranks[1].kernel("b:2500", at=0)
    # a: 0-1000, 2200-3200, 4400-4900; b: 1100-2100, 3300-4300, 5000-5500
    assert spans(bench) == {"a:2500": (0, 4900), "b:2500": (1100, 5500)}


def test_three_processes_wait_for_two(make: Callable[..., Bench]) -> None:
    bench = make(3)
    for rank, name in zip(bench.ranks, "abc", strict=True):
        rank.kernel(f"{name}:1500", at=0)
    # 0-1000 a, 1100-2100 b, 2200-3200 c, 3300-3800 a, 3900-4400 b, 4500-5000 c
    assert spans(bench) == {"a:1500": (0, 3800), "b:1500": (1100, 4400), "c:1500": (2200, 5000)}


def test_an_idle_process_costs_nothing(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.ranks[0].kernel("a:5000", at=0)
    bench.ranks[1].exit(at=3000)
    assert spans(bench) == {"a:5000": (0, 5000)}


def test_who_was_alone_for_a_slice_is_interrupted_at_once(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.ranks[0].kernel("a:5000", at=0)
    bench.ranks[1].kernel("b:50", at=3000)
    assert spans(bench) == {"b:50": (3100, 3150), "a:5000": (0, 5250)}


def test_between_whole_kernels_the_gpu_changes_over_in_no_time(make: Callable[..., Bench]) -> None:
    bench = make()
    for number in range(3):
        bench.ranks[0].kernel(f"a{number}:10", at=100 * number)
        bench.ranks[1].kernel(f"b{number}:10", at=100 * number + 5)
    found = spans(bench)
    assert [found[f"b{number}:10"] for number in range(3)] == [(100 * n + 10, 100 * n + 20) for n in range(3)]


def test_a_queue_of_kernels_is_one_turn(make: Callable[..., Bench]) -> None:
    """A stream with gaps between its kernels keeps its slice."""
    bench = make()
    timing = native.Timing(time_slice_ns=SLICE, context_switch_ns=SWITCH, kernel_gap_ns=2, filling_copy_bytes=1)
    bench.engine.set_timing(timing)
    for number in range(5):
        bench.ranks[0].kernel(f"a{number}:100", at=0)
    bench.ranks[1].kernel("b:100", at=50)
    assert spans(bench)["b:100"] == (508, 608)


def test_copies_go_on_next_to_the_kernels_of_another_process(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.ranks[0].kernel("a:3000", at=0)
    bench.ranks[1].emit("MEMCPY", id=layout.Copy.H2D_PINNED, bytes=2000, at=500)
    assert list(spans(bench, "KERNEL", "MEMCPY").values()) == [(500, 2500), (0, 3000)]


def test_under_mps_kernels_run_as_on_two_streams(make: Callable[..., Bench]) -> None:
    bench = make(mps=True)
    bench.ranks[0].kernel("a:3000", at=0, blocks=1)
    bench.ranks[1].kernel("b:3000", at=0, blocks=1)
    bench.ranks[0].kernel("c:1000", at=10_000)
    bench.ranks[1].kernel("d:1000", at=10_000)
    found = spans(bench)
    assert found["a:3000"] == found["b:3000"] == (0, 3000)
    assert (found["c:1000"], found["d:1000"]) == ((10_000, 11_000), (11_000, 12_000))


def test_streams_wait_for_default_streams_of_their_own_process_only(make: Callable[..., Bench]) -> None:
    bench = make(mps=True)
    bench.ranks[0].kernel("a:3000", at=0, blocks=1)
    stream = bench.ranks[1].stream(8, blocking=True)
    bench.ranks[1].kernel("b:1000", stream=stream, at=0, blocks=1)
    assert spans(bench)["b:1000"] == (0, 1000)


def test_the_gpu_waits_for_processes_that_may_come(make: Callable[..., Bench]) -> None:
    bench = make(speak=False)
    first, second = bench.ranks
    first.start()
    first.kernel("a:1000", at=0)
    first.ask("sync", "DEVICE_SYNC", at=10)
    bench.run()
    assert first.answer("sync") is None
    second.start()
    second.kernel("b:1000", at=20)
    second.exit(at=30)
    bench.run()
    assert first.answer("sync") == (0, 1000)


def test_memory_is_taken_in_the_order_of_the_clocks(make: Callable[..., Bench]) -> None:
    bench = make()
    first, second = bench.ranks
    first.ask("large", "SHARE", bytes=60, at=100)
    bench.run()
    assert first.answer("large") is None
    second.ask("small", "SHARE", bytes=50, at=50)
    bench.run()
    assert second.answer("small") is not None
    second.emit("ANNOTATION", at=110)
    bench.run()
    assert (first.answer("large") or (None,))[0] == 1, "what the other process had taken before leaves no room"
    second.ask("free", "SHARE", bytes=0, at=130)
    bench.run()
    first.emit("ANNOTATION", at=140)
    bench.run()
    assert second.answer("free") is not None
    assert second.replies["value"][second.requests["free"]] == 50


def test_an_allocation_waits_for_memory_that_has_been_given_back(make: Callable[..., Bench]) -> None:
    """The other process frees it and sends a message, which has no clock."""
    bench = make()
    first, second = bench.ranks
    first.ask("before", "SHARE", bytes=50, at=50)
    second.emit("ANNOTATION", at=60)
    bench.run()
    assert first.answer("before") is not None
    first.emit("SHARE", bytes=-50, at=120)
    first.emit("ANNOTATION", at=130)
    second.ask("large", "SHARE", bytes=60, at=100)
    bench.run()
    assert second.answer("large") == (0, 121)


def test_a_process_that_ends_gives_its_memory_back(make: Callable[..., Bench]) -> None:
    bench = make()
    first, second = bench.ranks
    first.ask("all", "SHARE", bytes=90, at=0)
    second.ask("later", "SHARE", bytes=90, at=200)
    bench.run()
    assert (first.answer("all") or (None,))[0] == 0
    first.exit(at=150)
    bench.run()
    assert (second.answer("later") or (None,))[0] == 0
    assert bench.engine.status().device_peak == 90


def test_places() -> None:
    places = Places(4, 2)
    assert places.shared
    assert [places.gpu_of(rank) for rank in range(8)] == [0, 1, 0, 1, 2, 3, 2, 3]
    assert [places.ranks_of(gpu) for gpu in range(4)] == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert not Places(2, 2).shared


def job(**more: object) -> RunSpec:
    spec = RunSpec("true", (), COMMAND, cluster="1x2xH100", processes_per_gpu=2, output=OutputSpec("x.arrow"))
    return replace(spec, **more)  # type: ignore[arg-type]


def test_a_command_has_a_place_for_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    setup = prepare(job()).setup
    assert (setup.world_size, setup.places) == (4, Places(4, 2, mps=True))
    assert setup.spec.ranks.devices == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fold": FoldSpec("dp=4")}, "a folded run has one process on each GPU"),
        ({"launch": LaunchSpec(nproc_per_node="2")}, "2 ranks do not share the 2 GPUs"),
        ({"launch": LaunchSpec(nproc_per_node="5")}, "has 4 places per host, 2 on each GPU"),
        ({"processes_per_gpu": 0}, "must be at least 1"),
    ],
)
def test_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(PhantoraError, match=message):
        prepare(job(**change))

"""Slowdown between kernels and communication on one GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phantora.cost.families import gemm
from phantora.cost.machine import Machine
from phantora.cost.types import Price
from phantora.hardware import load_cluster, load_gpu
from phantora.hardware.topology import Flow
from phantora.sim.collectives import CollectiveModel
from phantora.sim.engine import library as native
from phantora.sim.kernel_profile import communication_feels, communication_slowdown, interference, profile_of
from phantora.wire import layout
from tests.support.fakeranks import GRID, Bench, timing
from validation.data import rows

H200 = load_gpu("H200")
ALONE = 100  # ns of a collective of the bench's ranks


@pytest.fixture
def make(engine_library: Path) -> Callable[..., Bench]:
    def build(world: int = 2, slowed: float = 1.0, **profile: float) -> Bench:
        bench = Bench.create(engine_library, world)
        links = [bench.engine.add_link(1e12, -1, [rank]) for rank in range(world)]
        flows = [
            Flow(src=rank, dst=(rank + 1) % world, links=(links[rank],), bytes=ALONE, rate=1e9) for rank in range(world)
        ]
        bench.flows = lambda request: (0, flows)
        usual = {"interference": 1.0, "interference_behind": 1.0, "clock": 1.0}
        bench.profile = native.KernelProfile(**{**usual, **profile})
        bench.slowed = slowed
        for index, rank in enumerate(bench.ranks):
            rank.communicator(1, world, index)
            rank.stream(8)
            rank.stream(9, priority=-1)
        return bench

    return build


def finish(bench: Bench) -> dict[tuple[str, int], tuple[int, int]]:
    """(kind, rank) -> start and end of the last such row."""
    for rank in bench.ranks:
        rank.exit()
    bench.run()
    return {(row["kind"], row["rank"]): (row["start"], row["end"]) for row in bench.rows()}


@pytest.mark.parametrize(
    ("slowdown", "slowed", "kernel", "took"),
    [
        (0.5, 1.0, 1000, 200),  # all the time at half its pace
        (0.5, 0.5, 1000, 133),
        (0.5, 0.0, 1000, 100),
        (0.0, 1.0, 1000, 100),
        (0.5, 1.0, 40, 125),  # 20 ns are lost, and made up at the mean pace
    ],
)
def test_a_collective_loses_pace_next_to_kernels(
    make: Callable[..., Bench], slowdown: float, slowed: float, kernel: int, took: int
) -> None:
    bench = make(communication_slowdown=slowdown, slowed=slowed)
    for rank in bench.ranks:
        rank.collective(1, 4, stream=9, at=0)
        rank.kernel(f"k:{kernel}", at=0)
    assert finish(bench)["COLLECTIVE", 0] == (0, took)


def test_the_slowest_member_decides(make: Callable[..., Bench]) -> None:
    bench = make(communication_slowdown=0.5)
    for rank in bench.ranks:
        rank.collective(1, 4, stream=9, at=0)
    bench.ranks[1].kernel("k:1000", at=0)
    rows = finish(bench)
    assert rows["COLLECTIVE", 0] == rows["COLLECTIVE", 1] == (0, 200)


def test_what_was_lost_while_it_waited_for_members_does_not_count(make: Callable[..., Bench]) -> None:
    bench = make(communication_slowdown=0.5)
    zero, one = bench.ranks
    zero.collective(1, 4, stream=9, at=0)
    zero.kernel("k:400", at=0)
    one.collective(1, 4, stream=9, at=1000)
    assert finish(bench)["COLLECTIVE", 0] == (0, 1100)


def test_the_next_collective_begins_after_the_slowed_one(make: Callable[..., Bench]) -> None:
    bench = make(communication_slowdown=0.5)
    for rank in bench.ranks:
        rank.collective(1, 4, stream=9, at=0)
        rank.kernel("k:200", at=0)
        rank.collective(1, 4, stream=9, at=0)
    for rank in bench.ranks:
        rank.exit()
    bench.run()
    spans = [(row["start"], row["end"]) for row in bench.rows() if row["kind"] == "COLLECTIVE" and row["rank"] == 0]
    assert spans == [(0, 200), (200, 300)]


def test_communication_of_ordinary_priority_waits_for_what_fills_the_gpu(make: Callable[..., Bench]) -> None:
    bench = make()
    for rank in bench.ranks:
        rank.kernel("k:50", at=0)
        rank.collective(1, 4, stream=8, at=10)
    assert finish(bench)["COLLECTIVE", 0] == (50, 150)


@pytest.mark.parametrize(("priority_stream", "blocks", "began"), [(9, 10**6, 10), (8, 1, 10)])
def test_communication_finds_room(make: Callable[..., Bench], priority_stream: int, blocks: int, began: int) -> None:
    bench = make()
    for rank in bench.ranks:
        rank.kernel("k:50", at=0, blocks=blocks)
        rank.collective(1, 4, stream=priority_stream, at=10)
    assert finish(bench)["COLLECTIVE", 0][0] == began


def test_communication_loses_to_a_kernel_that_is_queued(make: Callable[..., Bench]) -> None:
    """An event lets the collective go at 50; the other stream goes on 10 ns later, but sooner than it can start."""
    bench = make()
    bench.engine.set_timing(timing(10, 10))
    for rank in bench.ranks:
        rank.kernel("a:50", at=0)
        rank.emit("EVENT_RECORD", id=1, at=0)
        rank.emit("STREAM_WAIT", id=1, stream=8, at=0)
        rank.collective(1, 4, stream=8, at=0)
        rank.kernel("b:70", at=0)
    assert finish(bench)["COLLECTIVE", 0][0] == 130


@pytest.mark.parametrize("known", [True, False])
def test_communication_waits_for_the_price_of_a_kernel_that_fills_the_gpu(
    make: Callable[..., Bench], known: bool
) -> None:
    """The operator of the other stream's kernel ends long after; whether that has been heard of changes nothing."""
    bench = make()
    bench.engine.set_timing(native.Timing(launch_latency_ns=1000, communication_start_ns=500))
    for rank in bench.ranks:
        rank.collective(1, 4, stream=8, at=0)
        rank.emit("OP_BEGIN", op=1, id=0, start=10)
        rank.emit("KERNEL", id=rank.name("k:700"), op=1, at=10, **GRID | {"grid_x": 10**6})
        rank.emit("MEMORY", at=5000)
        if not known:
            bench.run()
        rank.emit("OP_END", op=1, at=5000)
    assert finish(bench)["COLLECTIVE", 0] == (1710, 1810)


def test_a_collective_that_waits_for_room_has_not_arrived(make: Callable[..., Bench]) -> None:
    """Rank 0 waits for room; rank 1, which comes meanwhile, must not run past the end of what they do together."""
    bench = make()
    zero, one = bench.ranks
    zero.kernel("k:500", at=0)
    zero.collective(1, 4, stream=8, at=10)
    zero.kernel("small:1", stream=9, blocks=1, at=20)
    one.collective(1, 4, stream=8, at=50)
    one.kernel("z:10", at=3000)
    one.exit()
    bench.run()
    zero.exit(at=5000)
    bench.run()
    spans = {row["rank"]: (row["start"], row["end"]) for row in bench.rows() if row["kind"] == "COLLECTIVE"}
    assert spans == {0: (500, 600), 1: (50, 600)}


@pytest.mark.parametrize("product", [False, True])
def test_communication_that_was_there_first_costs_more(make: Callable[..., Bench], product: bool) -> None:
    """200 ns of a kernel, next to a collective of 100 ns that comes at 0 or, to a running product, at 10."""
    bench = make(interference=2.0, interference_behind=4.0)
    for rank in bench.ranks:
        if product:
            rank.emit(
                "KERNEL", id=rank.name("k:200"), **GRID | {"grid_x": 10**6}, flags=layout.Flag["PH_F_LIBRARY"], at=0
            )
            rank.collective(1, 4, stream=9, at=10)
        else:
            rank.collective(1, 4, stream=9, at=0)
            rank.kernel("k:200", at=0)
    assert finish(bench)["KERNEL", 0] == ((0, 250) if product else (0, 275))


def measured() -> list[dict[str, Any]]:
    measured = rows("2026-11-23-h200x4/interference.parquet")
    return [row for row in measured if row["kernel"].startswith("mm") and row["mode"] == "burst"]


def test_products_lose_the_waves_that_they_lose_on_a_real_gpu() -> None:
    alone = {row["kernel"]: row["alone_us"] for row in measured() if row["beside"] == "alone"}
    checked = 0
    for row in measured():
        if row["together"] < 4:
            continue
        m, n, k = map(int, row["kernel"].split()[2:])
        tiles = gemm.tiles_of(row["cuda_kernel"], gemm.Product(n, m, k))  # the library's m is torch's n
        price = Price((1000,), "gemm", "measured", flops=0.0, bytes=0.0, tiles=tiles)
        slower = row["together_us"] / alone[row["kernel"]]
        assert interference(H200, price) == pytest.approx(slower, rel=0.07), row
        checked += 1
    assert checked > 15


@pytest.mark.parametrize(
    ("blocks", "sms", "took"),
    [
        (1, 0, 1500),  # 200 tiles in 3 waves on 99 SMs, in 2 on 100
        (16, 84, 1000),  # the library must leave 16: 3 waves as before
        (40, 84, 4000 / 3),  # 60 are left
    ],
)
def test_a_product_loses_the_sms_that_kernels_of_peers_have(
    make: Callable[..., Bench], blocks: int, sms: int, took: float
) -> None:
    bench = make(tiles=200, sms=sms, waves=1.0, interference=9.0)
    for index, rank in enumerate(bench.ranks):
        rank.blob(f"symmetric memory\0{0}+1x2".encode())
        flags = layout.Flag["PH_F_SHARED"]
        rank.emit("COMM_CREATE", id=2, key_hi=2, key_lo=2, members=2, rank=index, flags=flags)
        scatter = layout.Coll.USERBUFFERS_REDUCE_SCATTER
        rank.emit("COLLECTIVE", id=2, stream=9, coll=scatter, count=1, blocks=blocks, bytes=10_000, at=0)
        rank.kernel("k:1000", at=0)
    bench.flows = None
    assert finish(bench)["KERNEL", 0][1] == pytest.approx(took, abs=1)


def test_products_lose_pairs_of_sms_to_communication_that_was_there_first() -> None:
    """384 tiles of 128 x 256: 127 us alone, 205 us behind an all-reduce of 202 us, in a trace of Megatron on 4 H200."""
    price = Price((127_000,), "gemm", "measured", flops=0.0, bytes=0.0, tiles=384)
    assert interference(H200, price, behind=True) == pytest.approx(205 / 127, rel=0.03)
    assert interference(H200, price) < 1.4


def beside() -> list[dict[str, Any]]:
    """All-reduces of 128 MiB wholly next to one kind of kernel."""
    measured = rows("2026-11-21-h200x2/communication_slowdown.parquet")
    return [row for row in measured if (row["operation"], row["mib"], row["where"]) == ("all_reduce", 128, "all")]


@pytest.mark.parametrize(
    ("neighbour", "cls"),
    [
        ("mm 4096 4096 4096", "gemm"),
        ("mm 8192 8192 2048", "gemm"),
        ("mm 4096 14336 4096", "gemm"),
        ("flash", "attention"),
        ("silu 112 MiB", "elementwise"),
        ("mul 128 MiB", "elementwise"),
        ("sin 64 MiB", "elementwise"),
        ("rms_norm 8 MiB again", "normalization"),
    ],
)
def test_all_reduces_lose_what_they_lose_on_a_real_gpu(neighbour: str, cls: str) -> None:
    (alone,) = (row["transfer_us"][2] for row in beside() if row["beside"] == "none")
    rows = [row for row in beside() if row["beside"] == neighbour]
    assert len(rows) == 2  # of either priority
    for row in rows:
        price = Price((round(row["alone_us"] * 1e3),), cls, "measured", flops=0.0, bytes=row["bytes"])
        simulated = 1.0 / (1.0 - communication_slowdown(Machine(H200), price))
        assert simulated == pytest.approx(row["transfer_us"][2] / alone, rel=0.1), row


def test_small_and_remote_neighbours_cost_nothing() -> None:
    small = Price((6_000,), "elementwise", "measured", flops=0.0, bytes=16e6)
    assert communication_slowdown(Machine(H200), small) < 0.01
    assert profile_of(Machine(H200), small).communication_slowdown == communication_slowdown(Machine(H200), small)
    assert (communication_feels(True), communication_feels(False)) == (1.0, 0.0)


def test_flows_name_the_gpus_at_their_ends() -> None:
    """The engine asks for the GPUs at a flow's ends, to find the kernels that slow it down."""
    price = CollectiveModel(load_cluster("1x4xH200")).collective(layout.Coll.ALL_REDUCE, (0, 1, 2, 3), 1 << 25, 9)
    assert {flow.src for flow in price.flows} == {flow.dst for flow in price.flows} == {0, 1, 2, 3}

"""Operations that share links, through the real engine, against hand arithmetic.

Links carry 10 bytes per ns unless a case says otherwise. A collective or transfer of B bytes is, after a
latency of 100 ns, one flow class per entry of `PATHS`, with B bytes and a cap of 10 bytes per ns.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantora.hardware.topology import Flow
from phantora.sim.engine import library as native
from tests.support.fakeranks import Bench

GB = 1e9  # 1 GB/s is a byte per ns
LATENCY = 100
CAP = 10 * GB


@dataclass
class Net:
    """Names of links, with who can use them; and the ways of operations by (kind, ranks or (src, dst))."""

    links: dict[str, tuple[float, tuple[int, ...]]]
    collectives: dict[tuple[int, ...], list[tuple[str, ...]]] = field(default_factory=dict)
    transfers: dict[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)

    def bench(self, library: Path, world: int) -> Bench:
        bench = Bench.create(library, world)
        numbers = {
            name: bench.engine.add_link(bandwidth, bench.engine.intern(native.NAMES, name), members)
            for name, (bandwidth, members) in self.links.items()
        }

        def flows(request: native.PriceRequest) -> tuple[int, Sequence[Flow]]:
            if request.kind == native.TRANSFER:
                ways = [self.transfers[request.src, request.dst]]
            else:
                ways = self.collectives[bench.engine.comm_ranks(request.comm)]
            return LATENCY, [
                Flow(src=-1, dst=-1, links=tuple(numbers[n] for n in way), bytes=request.bytes, rate=CAP)
                for way in ways
            ]

        bench.flows = flows
        return bench


def ports(world: int) -> dict[str, tuple[float, tuple[int, ...]]]:
    """A port up and a port down for every rank."""
    return {f"{way}{rank}": (CAP, (rank,)) for rank in range(world) for way in ("up", "down")}


def pair(a: int, b: int) -> list[tuple[str, ...]]:
    return [(f"up{a}", f"down{b}"), (f"up{b}", f"down{a}")]


Program = Callable[[Bench], None]


def join(bench: Bench, members: tuple[int, ...], key: int) -> None:
    for own, rank in enumerate(members):
        bench.ranks[rank].communicator(key, len(members), own, key)
        bench.ranks[rank].stream(8 * key)


def collect(bench: Bench, members: tuple[int, ...], key: int, nbytes: int, at: int) -> None:
    for rank in members:
        bench.ranks[rank].collective(key, nbytes, stream=8 * key, at=at)


def send(bench: Bench, src: int, dst: int, key: int, nbytes: int, at: int) -> None:
    bench.ranks[src].transfer("SEND", key, 1, nbytes, stream=8 * key, at=at)
    bench.ranks[dst].transfer("RECV", key, 0, nbytes, stream=8 * key, at=at)


def ends(bench: Bench) -> dict[tuple[int, int], int]:
    """(rank, stream / 8) -> end of its last communication kernel."""
    for rank in bench.ranks:
        rank.exit()
    reason = bench.run()
    assert not reason & native.ERROR, bench.engine.error()
    assert bench.engine.status().late == 0
    return {
        (row["rank"], row["stream"] // 8): row["end"]
        for row in bench.rows()
        if row["kind"] in ("COLLECTIVE", "SENDRECV")
    }


def alone(bench: Bench) -> None:
    join(bench, (0, 1), 1)
    collect(bench, (0, 1), 1, 1000, 0)


def nvlink_port_shared_in_one_direction(bench: Bench) -> None:
    """0->1 and 0->2, 1000 bytes each from the same moment: half the rate, twice the time."""
    for key, dst in ((1, 1), (2, 2)):
        join(bench, (0, dst), key)
        send(bench, 0, dst, key, 1000, 0)


def opposing_directions_do_not_meet(bench: Bench) -> None:
    """0->1 and 1->0 use other links."""
    join(bench, (0, 1), 1)
    join(bench, (1, 0), 2)
    send(bench, 0, 1, 1, 1000, 0)
    send(bench, 1, 0, 2, 1000, 0)


def the_second_begins_before_the_first_ends(bench: Bench) -> None:
    """First: 1000 bytes from 100. Second from 150: the first has 500 left, both at 5: the first ends at 250;
    the second has had 500 by then and ends at 300."""
    for key, dst, at in ((1, 1, 0), (2, 2, 50)):
        join(bench, (0, dst), key)
        send(bench, 0, dst, key, 1000, at)


def the_second_ends_first(bench: Bench) -> None:
    """First: 1000 bytes from 100; second: 200 from 120. At 120: 800 left, both at 5; second ends at 160, then
    600 left at 10: 220."""
    for key, dst, at, size in ((1, 1, 0, 1000), (2, 2, 20, 200)):
        join(bench, (0, dst), key)
        send(bench, 0, dst, key, size, at)


def shared_nic(bench: Bench) -> None:
    """Ranks 0 and 1 of a host reach 2 and 3 of another through one NIC of 10 bytes/ns."""
    for key, src, dst in ((1, 0, 2), (2, 1, 3)):
        join(bench, (src, dst), key)
        send(bench, src, dst, key, 1000, 0)


def shared_spine(bench: Bench) -> None:
    """Three transfers over a spine of 12 bytes/ns: 4 each. The shortest (400) ends at 200; then 6 each: the
    next (1000, 600 left) at 300; the last (2000, 1000 left) has its cap of 10: at 400."""
    for key, size in ((1, 400), (2, 1000), (3, 2000)):
        join(bench, (key - 1, key + 2), key)
        send(bench, key - 1, key + 2, key, size, 0)


def two_spines(bench: Bench) -> None:
    """The same two transfers over two spines do not know of each other."""
    for key, src, dst in ((1, 0, 2), (2, 1, 3)):
        join(bench, (src, dst), key)
        send(bench, src, dst, key, 1000, 0)


def nested_groups(bench: Bench) -> None:
    """All four at 0, the pair (0, 1) at 0 as well, 1000 bytes each: up0 and down1, up1 and ... The ring
    0>1>2>3>0 shares up0 and down1 with the pair's 0>1, nothing else: that class at 5 until both end at 300."""
    join(bench, (0, 1, 2, 3), 1)
    join(bench, (0, 1), 2)
    collect(bench, (0, 1, 2, 3), 1, 1000, 0)
    collect(bench, (0, 1), 2, 1000, 0)


def a_chain_of_shares(bench: Bench) -> None:
    """0->1 (1000), 0->2 (1000), 3->2 (2000): up0 and down2 are both shared by two: 5 each. At 300 the first
    two have ended; 3->2 has 1000 left at 10: 400."""
    for key, src, dst, size in ((1, 0, 1, 1000), (2, 0, 2, 1000), (3, 3, 2, 2000)):
        join(bench, (src, dst), key)
        send(bench, src, dst, key, size, 0)


def the_next_waits_for_a_contended_end(bench: Bench) -> None:
    """On each pair's stream a second transfer of 500 follows. First two: 1000 at 5 from 100 to 300. The seconds
    begin at 300, flows from 400, 500 at 5: to 500."""
    for key, dst in ((1, 1), (2, 2)):
        join(bench, (0, dst), key)
        send(bench, 0, dst, key, 1000, 0)
        send(bench, 0, dst, key, 500, 0)


HOSTS = {**ports(4), "nic0": (CAP, (0, 1)), "nic1": (CAP, (2, 3))}
CASES: list[tuple[Program, int, Net, dict[tuple[int, int], int]]] = [
    (alone, 2, Net(ports(2), {(0, 1): pair(0, 1)}), {(0, 1): 200, (1, 1): 200}),
    (
        nvlink_port_shared_in_one_direction,
        3,
        Net(ports(3), transfers={(0, 1): ("up0", "down1"), (0, 2): ("up0", "down2")}),
        {(0, 1): 300, (1, 1): 300, (0, 2): 300, (2, 2): 300},
    ),
    (
        opposing_directions_do_not_meet,
        2,
        Net(ports(2), transfers={(0, 1): ("up0", "down1"), (1, 0): ("up1", "down0")}),
        {(0, 1): 200, (1, 1): 200, (0, 2): 200, (1, 2): 200},
    ),
    (
        the_second_begins_before_the_first_ends,
        3,
        Net(ports(3), transfers={(0, 1): ("up0", "down1"), (0, 2): ("up0", "down2")}),
        {(0, 1): 250, (1, 1): 250, (0, 2): 300, (2, 2): 300},
    ),
    (
        the_second_ends_first,
        3,
        Net(ports(3), transfers={(0, 1): ("up0", "down1"), (0, 2): ("up0", "down2")}),
        {(0, 1): 220, (1, 1): 220, (0, 2): 160, (2, 2): 160},
    ),
    (
        shared_nic,
        4,
        Net(HOSTS, transfers={(0, 2): ("up0", "nic0", "down2"), (1, 3): ("up1", "nic0", "down3")}),
        {(0, 1): 300, (2, 1): 300, (1, 2): 300, (3, 2): 300},
    ),
    (
        shared_spine,
        6,
        Net({"spine": (12 * GB, ())}, transfers={(0, 3): ("spine",), (1, 4): ("spine",), (2, 5): ("spine",)}),
        {(0, 1): 200, (3, 1): 200, (1, 2): 300, (4, 2): 300, (2, 3): 400, (5, 3): 400},
    ),
    (
        two_spines,
        4,
        Net({"left": (CAP, ()), "right": (CAP, ())}, transfers={(0, 2): ("left",), (1, 3): ("right",)}),
        {(0, 1): 200, (2, 1): 200, (1, 2): 200, (3, 2): 200},
    ),
    (
        nested_groups,
        4,
        Net(
            ports(4),
            {
                (0, 1, 2, 3): [(f"up{r}", f"down{(r + 1) % 4}") for r in range(4)],
                (0, 1): [("up0", "down1"), ("up1", "down0")],
            },
        ),
        # up1 carries the ring's 1>2 and the pair's 1>0; down0 the ring's 3>0 and the pair's 1>0: all at 5.
        {**{(r, 1): 300 for r in range(4)}, (0, 2): 300, (1, 2): 300},
    ),
    (
        a_chain_of_shares,
        4,
        Net(ports(4), transfers={(0, 1): ("up0", "down1"), (0, 2): ("up0", "down2"), (3, 2): ("up3", "down2")}),
        {(0, 1): 300, (1, 1): 300, (0, 2): 300, (2, 2): 300, (3, 3): 400, (2, 3): 400},
    ),
    (
        the_next_waits_for_a_contended_end,
        3,
        Net(ports(3), transfers={(0, 1): ("up0", "down1"), (0, 2): ("up0", "down2")}),
        {(0, 1): 500, (1, 1): 500, (0, 2): 500, (2, 2): 500},
    ),
]


@pytest.mark.parametrize(("program", "world", "net", "expected"), CASES, ids=[case[0].__name__ for case in CASES])
def test_contended_operations_end_when_hand_arithmetic_says(
    engine_library: Path, program: Program, world: int, net: Net, expected: dict[tuple[int, int], int]
) -> None:
    bench = net.bench(engine_library, world)
    program(bench)
    assert ends(bench) == expected


def test_an_end_waits_for_whoever_could_still_share_the_link(engine_library: Path) -> None:
    """0->1 could end at 200, and both their hosts wait for it; but rank 2's host is at 40 and may use the spine."""
    net = Net({"spine": (CAP, ())}, transfers={(0, 1): ("spine",), (2, 3): ("spine",)})
    bench = net.bench(engine_library, 4)
    join(bench, (0, 1), 1)
    join(bench, (2, 3), 2)
    send(bench, 0, 1, 1, 1000, 0)
    bench.ranks[0].ask("sync", "STREAM_SYNC", stream=8)
    bench.ranks[1].ask("sync", "STREAM_SYNC", stream=8)
    bench.ranks[3].exit(at=1000)
    bench.ranks[2].kernel("k:1", at=40)
    bench.run()
    assert bench.ranks[0].answer("sync") is None
    bench.ranks[2].kernel("k:1", at=400)  # nothing came
    bench.run()
    assert bench.ranks[0].answer("sync") == (0, 200)


def test_private_links_do_not_wait_for_the_world(engine_library: Path) -> None:
    """The same over the ranks' own ports: rank 2 cannot reach them without rank 0 or 1."""
    net = Net(ports(4), transfers={(0, 1): ("up0", "down1")})
    bench = net.bench(engine_library, 4)
    join(bench, (0, 1), 1)
    send(bench, 0, 1, 1, 1000, 0)
    bench.ranks[0].ask("sync", "STREAM_SYNC", stream=8)
    bench.ranks[1].ask("sync", "STREAM_SYNC", stream=8)
    bench.run()
    assert bench.ranks[0].answer("sync") == (0, 200)


def test_sleepers_are_released_with_traffic_on_shared_links(engine_library: Path) -> None:
    """Rank 2 sleeps outside CUDA at 0; once it is released it cannot begin anything before 200."""
    net = Net({"spine": (CAP, ())}, transfers={(0, 1): ("spine",), (2, 3): ("spine",)})
    bench = net.bench(engine_library, 4)
    join(bench, (0, 1), 1)
    join(bench, (2, 3), 2)
    send(bench, 0, 1, 1, 1000, 0)
    for rank in bench.ranks[:2]:
        rank.ask("sync", "STREAM_SYNC", stream=8)
    bench.run()
    assert bench.ranks[0].answer("sync") is None
    assert bench.engine.release_sleepers([2, 3])
    bench.run()
    assert bench.ranks[0].answer("sync") == (0, 200)
    assert int(bench.ranks[2].control["floor"][0]) == 200


def test_a_link_degrades_when_the_gpu_of_rank_0_reaches_the_mark(engine_library: Path) -> None:
    """The host is at the mark at 20; the GPU has done the kernel before it at 150. The transfer has moved 500 bytes by
    then, the other 500 go at 5."""
    bench = Net({"spine": (CAP, ())}, transfers={(0, 1): ("spine",)}).bench(engine_library, 2)
    bench.engine.set_mark("Optimizer.step#")
    bench.engine.change_link_at_mark(0, 1, CAP / 2)
    join(bench, (0, 1), 1)
    send(bench, 0, 1, 1, 1000, 0)
    name = bench.ranks[0].name("Optimizer.step#AdamW.step")
    bench.ranks[0].kernel("k:150", blocks=1, at=0)
    bench.ranks[0].emit("ANNOTATION", id=name, start=0, at=20)
    assert ends(bench) == {(0, 1): 250, (1, 1): 250}
    assert bench.engine.status().marks == 1


def test_background_and_straggler(engine_library: Path) -> None:
    bench = Net({"spine": (CAP, ())}, transfers={(0, 1): ("spine",)}).bench(engine_library, 2)
    bench.engine.background([0], 2 * GB)
    bench.engine.straggler(1, 1.5)
    join(bench, (0, 1), 1)
    for rank in bench.ranks:
        rank.kernel("k:100", stream=8, at=0)
    send(bench, 0, 1, 1, 800, 0)
    assert ends(bench) == {(0, 1): 350, (1, 1): 350}  # 150, latency 100, 800 bytes at 8


def test_flows_and_links_in_the_log(engine_library: Path) -> None:
    net = Net({"spine": (CAP, ())}, transfers={(0, 1): ("spine",), (2, 3): ("spine",)})
    bench = net.bench(engine_library, 4)
    bench.engine.log_flows()
    for key, src, dst in ((1, 0, 1), (2, 2, 3)):
        join(bench, (src, dst), key)
        send(bench, src, dst, key, 500 * key, 0)
    for rank in bench.ranks:
        rank.exit()
    bench.run()
    rows = [row for row in bench.rows() if row["kind"] in ("FLOW", "LINK")]
    assert [(row["kind"], row["start"], row["end"]) for row in rows] == [
        ("FLOW", 100, 200),
        ("LINK", 100, 250),
        ("FLOW", 100, 250),
    ]


def test_a_group_of_which_a_part_is_given_up_is_called_by_the_other(engine_library: Path) -> None:
    """The part of the aborted communicator never began, and has no price."""
    bench = Net(ports(2), {(0, 1): pair(0, 1)}).bench(engine_library, 2)
    for key in (1, 2):
        join(bench, (0, 1), key)
    one, other = bench.ranks
    one.emit("GROUP_BEGIN", records=2)
    one.collective(2, 1000, stream=8)
    one.collective(1, 5000, stream=8)
    other.collective(1, 5000, stream=8)
    one.emit("COMM_ABORT", id=2, at=300)
    for rank in bench.ranks:
        rank.exit()
    bench.run()
    rows = [row for row in bench.rows() if row["kind"] == "COLLECTIVE"]
    assert [(row["rank"], row["end"]) for row in rows] == [(0, 600), (1, 600)]
    assert rows[0]["name"] == rows[1]["name"]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_contention_does_not_depend_on_who_ran_first(engine_library: Path, seed: int) -> None:
    """Random programs over ports and a spine, fed in two random orders: equal logs, nothing late."""
    draw = random.Random(seed)
    world = 4
    groups = [(0, 1, 2, 3), (0, 1), (2, 3), (0, 2)]
    links = {**ports(world), "spine": (15 * GB, ())}
    ways: dict[tuple[int, ...], list[tuple[str, ...]]] = {
        members: [(f"up{a}", "spine", f"down{b}") for a, b in itertools.pairwise((*members, members[0]))]
        for members in groups
    }
    plan = [(draw.randrange(len(groups)), draw.randrange(1, 3000), draw.randrange(400)) for _ in range(12)]
    logs = []
    for order in (1, 2):
        bench = Net(links, ways).bench(engine_library, world)
        steps: list[list[Callable[[], object]]] = [[] for _ in range(world)]
        for key, members in enumerate(groups, 1):
            n = len(members)
            for own, rank in enumerate(members):
                r = bench.ranks[rank]
                steps[rank].append(lambda r=r, key=key, n=n, own=own: r.communicator(key, n, own, key))  # type: ignore[misc]
                steps[rank].append(lambda r=r, key=key: r.stream(8 * key))  # type: ignore[misc]
        for which, size, gap in plan:
            for rank in groups[which]:
                r = bench.ranks[rank]
                k = which + 1
                steps[rank].append(lambda r=r, gap=gap, k=k: r.kernel(f"k:{gap + 10}", 8 * k, 1, r.clock + gap))  # type: ignore[misc]
                steps[rank].append(lambda r=r, k=k, size=size: r.collective(k, size, stream=8 * k))  # type: ignore[misc]
        for rank, r in enumerate(bench.ranks):
            steps[rank].append(r.exit)
        chooser = random.Random(seed + order)
        while any(steps):
            chooser.choice([queue for queue in steps if queue]).pop(0)()
            if chooser.random() < 0.3:
                bench.run()
        reason = bench.run()
        assert not reason & native.ERROR, bench.engine.error()
        assert bench.engine.status().late == 0
        logs.append(bench.rows())
    assert logs[0] == logs[1]
    assert len([row for row in logs[0] if row["kind"] == "COLLECTIVE"]) == sum(len(groups[w]) for w, _, _ in plan)

"""The network alone: rates against the textbook's progressive filling, ends against hand arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.network import NEVER, Class, Network, fill, simulate

GB = 1e9  # 1 GB/s is one byte per ns

links = st.lists(st.integers(1, 50).map(lambda n: n * GB / 4), min_size=1, max_size=8)


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[float], list[Class], list[int]]:
    bandwidths = draw(links)
    some = st.sets(st.integers(0, len(bandwidths) - 1), max_size=4).map(lambda s: tuple(sorted(s)))
    one = st.builds(
        Class, some, st.integers(1, 10**6).map(float), st.integers(1, 80).map(lambda n: n * GB / 8), st.integers(1, 4)
    )
    classes = draw(st.lists(one, min_size=1, max_size=12))
    starts = draw(st.lists(st.integers(0, 50_000), min_size=len(classes), max_size=len(classes)))
    return bandwidths, classes, starts


def rates_of(library: Path, bandwidths: list[float], classes: list[Class]) -> list[float]:
    network = Network(library, bandwidths)
    activity = network.begin(0, classes)
    network.step()  # they start
    return [network.rate(activity, i) for i in range(len(classes))]


@settings(max_examples=200, deadline=None)
@given(networks())
def test_rates_are_max_min_fair_and_no_link_is_over_capacity(
    engine_library: Path, drawn: tuple[list[float], list[Class], list[int]]
) -> None:
    bandwidths, classes, _ = drawn
    rates = rates_of(engine_library, bandwidths, classes)
    assert rates == pytest.approx(fill(bandwidths, classes), rel=1e-9)
    for link, bandwidth in enumerate(bandwidths):
        assert sum(r * c.count for r, c in zip(rates, classes, strict=True) if link in c.links) <= bandwidth * (
            1 + 1e-12
        )


@settings(max_examples=200, deadline=None)
@given(networks(), st.randoms(use_true_random=False))
def test_every_byte_arrives_once_whatever_the_order_of_calls(
    engine_library: Path, drawn: tuple[list[float], list[Class], list[int]], random: object
) -> None:
    """Ends equal the reference's; bytes on the links add up; the order of begin() does not matter."""
    bandwidths, classes, starts = drawn
    network = Network(engine_library, bandwidths)
    network.watch()
    for tag, (start, one) in enumerate(zip(starts, classes, strict=True)):
        network.begin(start, [one], tag)
    ends = network.run()
    expected = simulate(bandwidths, starts, classes)
    for tag, end in enumerate(expected):
        assert abs(ends[tag, 0] - end) <= 1 + len(classes), (tag, ends, expected)  # each end is rounded up
    carried = [0.0] * len(bandwidths)
    for link, start, end, amount in network.busy():
        assert end > start
        assert amount <= bandwidths[link] * (end - start) * 1e-9 * (1 + 1e-9)
        carried[link] += amount
    for link in range(len(bandwidths)):
        sent = sum(c.bytes * c.count for c in classes if link in c.links)
        # The last nanosecond of a class is counted whole.
        assert sent - 1e-6 <= carried[link] + 1 <= sent + 2 + sum(c.rate * c.count for c in classes) * 1e-9 * 2
    again = Network(engine_library, bandwidths)
    order = list(range(len(classes)))
    random.shuffle(order)  # type: ignore[attr-defined]
    for tag in order:
        again.begin(starts[tag], [classes[tag]], tag)
    assert again.run() == ends


@settings(max_examples=100, deadline=None)
@given(networks(), st.data())
def test_another_flow_never_speeds_up_one_on_the_same_bottleneck(
    engine_library: Path, drawn: tuple[list[float], list[Class], list[int]], data: st.DataObject
) -> None:
    bandwidths, classes, _ = drawn
    link = data.draw(st.integers(0, len(bandwidths) - 1))
    classes = [*classes, Class((link,), 1e6, 100 * GB)]
    before = rates_of(engine_library, bandwidths, classes)
    load = sum(r * c.count for r, c in zip(before, classes, strict=True) if link in c.links)
    assume(load >= bandwidths[link] * (1 - 1e-9))  # a bottleneck: full, and nobody on it is faster than ours
    after = rates_of(engine_library, bandwidths, [*classes, Class((link,), 1e6, 100 * GB)])
    for index, one in enumerate(classes):
        if link in one.links and before[index] >= before[-1] * (1 - 1e-9):
            assert after[index] <= before[index] * (1 + 1e-9)


def test_alone_a_class_takes_what_its_cap_says(engine_library: Path) -> None:
    """Also where bytes / rate is no binary number: a model's duration comes back to the nanosecond."""
    for duration, amount in ((123_457, 1e9 / 3), (999_999_937, 7e10 / 9), (1, 0.1), (3_600_000_000_000, 1e15)):
        network = Network(engine_library, [1e15])
        network.begin(1000, [Class((0,), amount, amount / duration * 1e9)])
        assert network.run() == {(0, 0): 1000 + duration}


def test_shares_change_as_flows_come_and_go(engine_library: Path) -> None:
    """10 bytes/ns. A: 1000 bytes from 0; B: 300 bytes from 50. A alone 500 bytes; both at 5: B ends at
    50 + 60 = 110 with A at 200 left; A ends at 110 + 20."""
    network = Network(engine_library, [10 * GB])
    network.begin(0, [Class((0,), 1000, 100 * GB)], 1)
    network.begin(50, [Class((0,), 300, 100 * GB)], 2)
    assert network.run() == {(2, 0): 110, (1, 0): 130}


def test_a_link_gets_slower_and_recovers(engine_library: Path) -> None:
    """1000 bytes at 10: 30 ns at full rate, 40 ns at a quarter (100 bytes), 60 ns for the other 600."""
    network = Network(engine_library, [10 * GB])
    network.change(0, 30, 2.5 * GB)
    network.change(0, 70, 10 * GB)
    network.begin(0, [Class((0,), 1000, 100 * GB)])
    assert network.run() == {(0, 0): 130}


def test_components_meet_and_part(engine_library: Path) -> None:
    network = Network(engine_library, [10 * GB] * 3)
    left = network.begin(0, [Class((0,), 1000, 100 * GB)], 1)
    right = network.begin(0, [Class((2,), 1000, 100 * GB)], 2)
    assert network.component(left) != network.component(right)
    bridge = network.begin(10, [Class((0, 1, 2), 100, 2 * GB)], 3)
    assert network.component(left) == network.component(right) == network.component(bridge)
    while not network.step():
        pass  # the bridge ends at 60
    assert network.component(left) != network.component(right)
    assert network.run() == {(1, 0): 110, (2, 0): 110}


def test_the_past_of_a_link_is_settled(engine_library: Path) -> None:
    network = Network(engine_library, [10 * GB, 10 * GB])
    network.begin(0, [Class((0,), 1000, 100 * GB)])
    network.run()
    assert (network.earliest(0), network.earliest(1)) == (100, 0)


def test_what_links_carry_is_one_stretch_while_the_rate_is_alike(engine_library: Path) -> None:
    network = Network(engine_library, [10 * GB, 10 * GB])
    network.watch()
    network.begin(100, [Class((0,), 500, 5 * GB), Class((0, 1), 1000, 5 * GB)])
    network.run()
    assert network.busy() == [(0, 100, 200, 1000.0), (0, 200, 300, 500.0), (1, 100, 300, 1000.0)]
    assert network.next() == NEVER

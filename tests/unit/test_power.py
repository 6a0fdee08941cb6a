"""The power limit and gaps: what kernels do to a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from phantora.cost.machine import Machine
from phantora.cost.types import Price
from phantora.errors import PhantoraError
from phantora.hardware import load_cluster, load_gpu
from phantora.runs.setup import capped
from phantora.sim.config import SimulatorConfig
from phantora.sim.engine import library as native
from phantora.sim.kernel_profile import limit_power, profile_of
from phantora.sim.pricing import Pricing
from phantora.spec import WhatIfSpec
from phantora.trace.schema import Tables
from phantora.wire import layout
from tests.support.fakeranks import Bench, timing
from tests.support.fixed_costs import FixedCosts
from validation.compare.power_limit import Limiter

H200 = load_gpu("H200")


def spans(bench: Bench) -> list[tuple[int, int]]:
    return [(start, end) for _, start, end in bench.spans()]


def hot(bench: Bench, *, clock: float = 1.0, bound: float = 1.0, dynamic: float = 200.0, steady: float = 0.0) -> None:
    bench.profile = native.KernelProfile(
        interference=1.0,
        interference_behind=1.0,
        dynamic_watts=dynamic,
        steady_watts=steady,
        clock=clock,
        clock_bound=bound,
    )


def two_kernels(bench: Bench, then: int = 0) -> list[tuple[int, int]]:
    """A long kernel that fills the limiter's memory, and one of 100 ns behind it."""
    (rank,) = bench.ranks
    rank.kernel("warm:10000", at=0)
    rank.kernel("k:100", at=then)
    rank.exit()
    bench.run()
    return spans(bench)


def test_the_clock_falls_with_the_power(make: Callable[[int], Bench]) -> None:
    bench = make(1)
    bench.engine.set_power(native.PowerLimit(100.0, 1.0, 0.0, 10.0, 20.0, 0.3))
    hot(bench)
    assert two_kernels(bench) == [(0, 10000), (10000, 10200)]  # twice the budget: half the clock


@pytest.mark.parametrize("dynamic", [90.0, 130.0, 200.0])
def test_the_comparison_of_kernels_has_the_engines_limit(make: Callable[[int], Bench], dynamic: float) -> None:
    limit = native.PowerLimit(100.0, 2.0, 0.0, 300.0, 900.0, 0.3)
    bench = make(1)
    bench.engine.set_power(limit)
    hot(bench, dynamic=dynamic)
    (rank,) = bench.ranks
    for _ in range(20):
        rank.kernel("k:1000", at=0)
    rank.exit()
    bench.run()
    limiter = Limiter(limit)
    profile = bench.profile
    assert profile is not None
    expected = [limiter.run(profile, 1000.0) for _ in range(20)]
    assert [end - start for start, end in spans(bench)] == pytest.approx(expected, abs=2)
    assert (expected[-1] > 1010) is (dynamic > 100)


def test_a_limiter_goes_on_where_it_is_told_when_the_first_step_ends(make: Callable[[int], Bench]) -> None:
    bench = make(1)
    bench.engine.set_power(native.PowerLimit(100.0, 1.0, 0.0, 1e9, 1e9, 0.3))
    hot(bench)
    bench.engine.set_mark("Optimizer.step")
    bench.engine.start_power(0, native.PowerState(100.0, 0.5, 0.5))
    (rank,) = bench.ranks
    rank.kernel("first:100", at=0)
    rank.emit("ANNOTATION", id=rank.name("Optimizer.step#SGD.step"), start=0, at=10)
    rank.kernel("second:100", at=20)
    rank.exit()
    bench.run()
    assert spans(bench) == [(0, 100), (100, 300)]
    state = bench.engine.power(0)
    assert state is not None and state.clock == pytest.approx(0.5)


def test_dynamic_power_goes_with_a_power_of_the_clock(make: Callable[[int], Bench]) -> None:
    bench = make(1)
    bench.engine.set_power(native.PowerLimit(50.0, 2.0, 0.0, 10.0, 20.0, 0.3))
    hot(bench)
    assert two_kernels(bench)[1] == (10000, 10200)  # four times the budget


@pytest.mark.parametrize(
    ("profile", "took"),
    [
        ({"bound": 0.0}, 100),  # does not depend on the clock
        ({"bound": 0.5}, 150),
        ({"clock": 0.5}, 100),  # was measured at that clock
        ({"clock": 0.75}, 150),
        ({"dynamic": 90.0}, 100),  # within the budget
        ({"dynamic": 50.0, "steady": 75.0}, 200),  # what does not fall leaves less to what does
    ],
)
def test_what_a_lower_clock_costs(make: Callable[[int], Bench], profile: dict[str, float], took: int) -> None:
    bench = make(1)
    bench.engine.set_power(native.PowerLimit(100.0, 1.0, 0.0, 10.0, 20.0, 0.3))
    hot(bench, **profile)
    start, end = two_kernels(bench)[1]
    assert end - start == took


def test_an_idle_gpu_gets_its_clock_back(make: Callable[[int], Bench]) -> None:
    bench = make(1)
    bench.engine.set_power(native.PowerLimit(100.0, 1.0, 0.0, 10.0, 20.0, 0.3))
    hot(bench)
    assert two_kernels(bench, then=11000)[1] == (11000, 11100)


def test_a_gpu_that_draws_more_is_slower(make: Callable[[int], Bench]) -> None:
    bench = make(1)
    bench.engine.set_power(native.PowerLimit(100.0, 1.0, 0.0, 10.0, 20.0, 0.3))
    bench.engine.set_power_factor(0, 1.25)
    hot(bench)
    assert two_kernels(bench)[1] == (10000, 10250)


def test_communication_draws_too(make: Callable[[int], Bench]) -> None:
    bench = make(2)
    bench.engine.set_power(native.PowerLimit(100.0, 1.0, 60.0, 10.0, 20.0, 0.3))
    hot(bench, dynamic=80.0)
    for index, rank in enumerate(bench.ranks):
        rank.communicator(1, 2, index)
        rank.stream(8, priority=-1)
        rank.collective(1, 30000, stream=8, at=0)
        rank.kernel("warm:10000", at=0)
        rank.kernel("k:100", at=0)
        rank.exit()
    bench.run()
    assert spans(bench) == [(0, 10000)] * 2 + [(10000, 10200)] * 2  # 40 W are left for 80


def test_gaps_grow_while_two_other_streams_have_work(make: Callable[[int], Bench]) -> None:
    bench = make(1)
    bench.engine.set_timing(timing(10, 25))
    (rank,) = bench.ranks
    for name in "ab":
        rank.kernel(f"{name}:100", blocks=1, at=0)
    for stream in (8, 9):
        rank.stream(stream)
        rank.kernel(f"long{stream}:1000", stream=stream, blocks=1, at=110)
    rank.kernel("c:100", blocks=1, at=110)
    rank.exit()
    bench.run()
    starts = {name[0]: start for name, start, _ in bench.spans()}
    assert (starts["b"], starts["c"]) == (110, 235)


def test_gaps_part_copies_and_memsets_too(make: Callable[[int], Bench]) -> None:
    bench = make(1)
    bench.engine.set_timing(timing(10, 25))
    (rank,) = bench.ranks
    rank.kernel("a:100", at=0)
    rank.emit("EVENT_RECORD", id=1, at=0)
    rank.emit("MEMSET", bytes=500, at=0)
    rank.kernel("b:100", at=0)
    rank.exit()
    bench.run()
    (_, _, a_end), (_, start, end), (_, b_start, _) = sorted(bench.spans("KERNEL", "MEMSET"), key=lambda span: span[1])
    assert (start - a_end, b_start - end) == (10, 10)


class PowerFactors:
    """An engine that notes its calls."""

    def __init__(self) -> None:
        self.factors: dict[int, float] = {}

    def set_power(self, limit: native.PowerLimit, kind: int) -> None:
        self.budget = limit.budget_watts

    def set_power_factor(self, rank: int, factor: float) -> None:
        self.factors[rank] = factor


@pytest.mark.parametrize("world", [1, 2, 4, 64])
def test_gpus_of_a_job_have_the_quantiles_of_their_distribution(world: int) -> None:
    engine: Any = PowerFactors()
    limit_power(engine, load_cluster(f"1x{world}xH200"), world)
    factors = sorted(engine.factors[rank] - 1.0 for rank in range(world))
    assert math.isclose(sum(factors), 0.0, abs_tol=1e-9)
    spread = math.sqrt(sum(f * f for f in factors) / world)
    assert (spread == 0.0) if world == 1 else 0.5 * H200.power.spread < spread <= H200.power.spread


def test_a_lower_limit_leaves_what_kernels_draw() -> None:
    engine: Any = PowerFactors()
    limited = replace(H200, limit_watts=500.0)
    limit_power(engine, replace(load_cluster("1x1xH200"), gpu=limited), 1)
    assert engine.budget == pytest.approx(500 - 0.21 * 700)
    price = Price((1000,), "elementwise", "measured", flops=0.0, bytes=4.5e6)
    assert profile_of(Machine(limited), price).steady_watts == profile_of(Machine(H200), price).steady_watts > 0


def test_a_power_cap_is_a_limit_within_the_gpus_own() -> None:
    cluster = load_cluster("1x1xH200")
    assert capped(cluster, WhatIfSpec(power_cap=500.0)).gpu == replace(cluster.gpu, limit_watts=500.0)
    assert capped(cluster, WhatIfSpec()) is cluster
    with pytest.raises(PhantoraError, match="--power-cap is 900, and H200-SXM takes 700 W at most"):
        capped(cluster, WhatIfSpec(power_cap=900.0))


def test_products_of_a_burst_do_not_run_at_full_clock() -> None:
    """4096 x 14336 x 4096 take 596 us in a burst, and 692 us heated, at 1515 of 1980 MHz: 1760 MHz in the burst."""
    price = Price(
        (596_000,), "gemm", "measured", flops=2.0 * 4096 * 14336 * 4096, bytes=2.7e8, format="bfloat16", tiles=1440
    )
    profile = profile_of(Machine(H200), price)
    assert profile.clock == pytest.approx(1760 / 1980, abs=0.05)
    assert profile.clock_bound == 1.0


def test_kernels_bound_by_memory_do_not_follow_the_clock() -> None:
    profile = profile_of(Machine(H200), Price((1000,), "elementwise", "measured", flops=0.0, bytes=4.5e6))
    assert profile.clock_bound == pytest.approx(1 - 4.5 / 4.8)
    assert profile.dynamic_watts == 0.0


def test_copies_by_a_link_do_not_follow_the_clock(engine_library: Path) -> None:
    kinds = (layout.Copy.H2D_PINNED, layout.Copy.D2H_PINNED, layout.Copy.D2D)
    engine = Mock(native.Engine)
    engine.next_price.side_effect = [
        *(native.PriceRequest(id=kind, kind=native.COPY, sub=kind, bytes=1 << 20) for kind in kinds),
        None,
    ]
    Pricing(
        engine, Tables(), 1, SimulatorConfig(engine=engine_library, cluster=load_cluster("1x1xH200"), cost=FixedCosts())
    ).serve()
    assert [call.args[0] for call in engine.set_profile.call_args_list] == [layout.Copy.D2D]


def test_arithmetic_without_tensor_cores_goes_with_the_clock_and_draws_less() -> None:
    simt, tensor = (
        profile_of(
            Machine(H200),
            Price(
                (1_000_000,), "gemm", "measured", flops=0.7 * H200.peak_flops[f] * 1e-3, bytes=1e8, format=f, tiles=1440
            ),
        )
        for f in ("float32", "bfloat16")
    )
    assert (simt.clock_bound, tensor.clock_bound) == (1.0, 1.0)
    assert simt.dynamic_watts == H200.power.active * H200.power_watts < 0.7 * tensor.dynamic_watts


def drawn(bench: Bench) -> list[tuple[int, int, int, int]]:
    """Rank, start, end in us and microjoules of the power rows."""
    power = layout.RowKind.POWER
    rows = [row for row in bench.engine.take_rows(True) if row["kind"] == power]
    return [(int(r["rank"]), int(r["start"]) // 1000, int(r["end"]) // 1000, int(r["value"])) for r in rows]


def meter(at: int, rank: int = 0, power: int = 0) -> dict[str, int]:
    return {"at": at, "rank": rank, "device": -1, "id": power}


def test_energy_is_what_runs_and_what_rests(make: Callable[[int], Bench]) -> None:
    bench = make(1)
    bench.engine.set_power(native.PowerLimit(600.0, 2.0, 0.0, 10.0, 20.0, 0.3, 0.0, 100.0, 60.0))
    hot(bench)
    (rank,) = bench.ranks
    rank.kernel("k:4000000", at=1_000_000)  # 300 W for 4 ms, 60 W for 1 ms before and 5 ms behind
    rank.ask("half", "METER", **meter(3_000_000))
    bench.run()
    assert rank.answer("half") == (0, -1) and int(rank.replies["value"][rank.requests["half"]]) == 660  # mJ
    rank.ask("now", "METER", **meter(10_000_000, power=1))
    bench.run()
    assert int(rank.replies["value"][rank.requests["now"]]) == 60_000  # mW
    rank.emit("ANNOTATION", id=rank.name("end"), start=0, at=10_000_000)
    rank.exit()
    bench.run()
    assert drawn(bench) == [(0, 0, 5000, 1_260_000), (0, 5000, 10000, 300_000)]


def test_the_meter_of_another_rank_waits_for_its_host(make: Callable[[int], Bench]) -> None:
    bench = make(2)
    bench.engine.set_power(native.PowerLimit(600.0, 2.0, 0.0, 10.0, 20.0, 0.3, 0.0, 100.0, 60.0))
    hot(bench)
    asks, works = bench.ranks
    asks.ask("other", "METER", **meter(2_000_000, rank=1))
    works.kernel("k:500000", at=0)
    bench.run()
    assert asks.answer("other") is None  # its host may still launch something before
    works.kernel("k:500000", at=1_000_000)
    works.exit(at=2_000_000)
    bench.run()
    assert asks.answer("other") == (0, -1) and int(asks.replies["value"][asks.requests["other"]]) == 360


def test_a_small_kernel_draws_by_its_share_of_the_sms(make: Callable[[int], Bench]) -> None:
    bench = make(1)
    bench.engine.set_power(native.PowerLimit(600.0, 2.0, 0.0, 10.0, 20.0, 0.3, 0.0, 100.0, 60.0))
    hot(bench, dynamic=0.0, steady=400.0)
    (rank,) = bench.ranks
    rank.kernel("k:1000000", at=0, blocks=50)  # of 200 that 100 SMs hold
    rank.exit()
    bench.run()
    assert drawn(bench) == [(0, 0, 1000, 200_000)]


def test_attention_under_a_mask_holds_the_full_clock_for_a_while() -> None:
    """cuDNN's causal attention of 16,384 tokens takes 1.17 times its first call's time once an H200 is at its limit
    (validation/measurements/2026-11-30-h200/power_mix.jsonl): it began at 1,980 MHz and goes on at 1,710."""
    flops = 4.0 * 16384**2 * 16 * 128
    price = Price((1_723_000,), "attention", "measured", flops=flops, bytes=2.7e8, format="bfloat16", computed=0.5)
    profile = profile_of(Machine(H200), price)
    assert profile.clock > 0.95
    within = 1.0 - H200.power.idle
    held = (within * H200.power_watts / profile.dynamic_watts) ** (1.0 / H200.power.exponent)
    assert held == pytest.approx(1710 / 1980, abs=0.03)

"""Pipelines of a folded run: for which each stands, and whose GPUs its processes have."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import pytest

from phantora.fold.mesh import Fold
from phantora.fold.pipelines import Pipeline, pipelines_of
from phantora.fold.syntax import parse_fold
from phantora.sim.engine import library as native
from phantora.trace.schema import OPTIMIZER_STEP
from tests.support.fakeranks import Bench

STEPS = 4


def mesh(text: str, *more: int) -> Fold:
    found = parse_fold(text, prod(int(part.partition("=")[2].partition(":")[0]) for part in text.split(",")), more)
    assert found is not None
    return found


def of(text: str, *more: int) -> dict[int, Pipeline]:
    """Pipelines by their first process. The factor of a rank's GPU is its number."""
    fold = mesh(text, *more)
    found = pipelines_of(fold, [float(rank) for rank in range(fold.world_size)])
    assert sorted(rank for each in found for rank in each.ranks) == list(fold.real)
    return {each.ranks[0]: each for each in found}


def test_a_representative_with_all_stages_stands_for_the_pipelines_between() -> None:
    found = of("pp=2,dp=4")
    representative = next(rank for rank in found if rank not in (0, 3))
    assert found[0].factors == ((0.0, 4.0),) and found[3].factors == ((3.0, 7.0),)
    assert found[representative].stages == (0, 1)
    assert found[representative].factors == ((1.0, 5.0), (2.0, 6.0))


def test_the_first_place_stands_for_those_that_have_no_process_at_a_stage() -> None:
    found = of("pp=3,dp=4")
    representative = next(axis.representative for axis in mesh("pp=3,dp=4").axes if axis.representative)
    assert found[0].ranks == (0, 4, 8, representative, representative + 8)
    assert found[0].stages == (0, 1, 2, -1, -1)
    assert found[0].factors == tuple((d, 4.0 + d, 8.0 + d, d, 8.0 + d) for d in (0.0, 1.0, 2.0))
    assert found[3].factors == ((3.0, 7.0, 11.0),)


def test_named_ranks_stand_for_themselves() -> None:
    found = of("pp=3,dp=8", 5)
    assert found[5].factors == ((5.0, 13.0, 21.0),)
    assert all(factors[0] != 5.0 for factors in found[0].factors)


def test_a_named_rank_of_a_tensor_parallel_group_speaks_for_itself() -> None:
    found = of("pp=2,dp=4,tp=8", 3)
    assert dict(zip(found[0].ranks, found[0].factors[0], strict=True))[3] == 3.0


def test_of_ranks_that_share_each_layer_the_largest_factor_counts() -> None:
    """Of the group along tp of the representative the first rank alone runs at both stages."""
    fold = mesh("pp=2,dp=4,tp=4")
    found = of("pp=2,dp=4,tp=4")
    representative = fold.axes[1].representative * 4
    pipeline = found[representative]
    last = dict(zip(pipeline.ranks, pipeline.factors[-1], strict=True))
    assert last[representative + 16] == 16 + 2 * 4 + 3  # the last of the four of the third group
    assert max(factor for rank, factor in last.items() if rank < 16) == 2 * 4 + 3


def test_a_mesh_without_a_pipeline_has_none() -> None:
    fold = mesh("dp=8,tp=4")
    assert pipelines_of(fold, [1.0] * fold.world_size) == []


def trained(library: Path, order: tuple[int, ...], *, marks: int = 1) -> list[dict[str, Any]]:
    """Rows of two stages, of which the second has four times as much to do, heard in this order. Of one pipeline
    the first GPU is the slowest, of the other the second."""
    bench = Bench.create(library, 2)
    bench.engine.set_mark(OPTIMIZER_STEP)
    bench.engine.set_power(native.PowerLimit(100.0, 1.0, 0.0, 10.0, 20.0, 0.3))
    bench.profile = native.KernelProfile(
        interference=1.0, interference_behind=1.0, dynamic_watts=200.0, steady_watts=0.0, clock=1.0, clock_bound=1.0
    )
    bench.engine.add_pipeline((0, 1), (0, 1), ((1.5, 1.0), (1.0, 1.25)))
    for index in order:
        rank = bench.ranks[index]
        rank.communicator(1, 2, index)
        for _ in range(STEPS):
            for forward in (True, False):
                if forward == bool(index):
                    rank.transfer("RECV", 1, 1 - index, 1000)
                rank.kernel(f"warm{index}:1000")
                rank.kernel(f"k{index}:{(1, 4)[index] * 10000}")
                if forward != bool(index):
                    rank.transfer("SEND", 1, 1 - index, 1000)
            for _ in range(marks):
                rank.emit("ANNOTATION", id=rank.name(OPTIMIZER_STEP + "AdamW.step"), start=0)
        rank.exit()
        bench.run()
    return bench.rows()


def took(rows: list[dict[str, Any]], name: str) -> list[int]:
    """ns of the second of these kernels in each step."""
    spans = [row["end"] - row["start"] for row in rows if row["name"].startswith(name)]
    return spans[1::2]


def test_the_slowest_by_the_loads_of_the_last_step_counts(engine_library: Path) -> None:
    rows = trained(engine_library, (0, 1))
    assert took(rows, "k0") == [30000, 30000, 20000, 20000]  # until then the largest factor of each stage
    assert took(rows, "k1") == [100000] * STEPS


@pytest.mark.parametrize("marks", [1, 3])
def test_who_is_heard_first_changes_nothing(engine_library: Path, marks: int) -> None:
    """Nor do several optimizers in a step."""
    rows = trained(engine_library, (0, 1), marks=marks)
    assert trained(engine_library, (1, 0), marks=marks) == rows
    assert took(rows, "k0") == [30000, 30000, 20000, 20000]


def test_without_an_optimizer_the_largest_factors_stay(engine_library: Path) -> None:
    rows = trained(engine_library, (0, 1), marks=0)
    assert took(rows, "k0") == [30000] * STEPS
    assert took(rows, "k1") == [100000] * STEPS

"""Meshes drawn at random: what processes of a folded run see is what the same ranks see in a run of all."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from phantora.fold.mesh import STAGES, Fold
from phantora.fold.ranges import format_ranks
from phantora.fold.syntax import parse_fold
from phantora.sim.engine import library as native
from phantora.wire import layout
from tests.support.fakeranks import Bench

INT64 = 4
Step = tuple[int, int, int]  # axes of the group as bits, bytes of a collective, ns of the kernel before it


def group(fold: Fold, rank: int, axes: int) -> list[int]:
    """The ranks that differ from `rank` in these axes alone."""
    mine = fold.coordinates(rank)
    same = [number for number in range(len(mine)) if not axes >> number & 1]
    return [
        other
        for other in range(fold.world_size)
        if all(fold.coordinates(other)[number] == mine[number] for number in same)
    ]


def says(fold: Fold, rank: int, axes: int) -> int:
    """Grows evenly along the folded axes of a group, and anyhow from stage to stage; the same from all of a part of a
    pipeline's ranks (two processes of a stage between do not tell what differs)."""
    point, said = fold.coordinates(rank), 0
    long = fold.axes[0].expanded and fold.axes[0].size > STAGES  # of most of its stages one process speaks alone
    if fold.axes[0].expanded and (long or axes != (1 << len(fold.axes)) - 1):
        return 7
    for number, axis in enumerate(fold.axes):
        slope = point[number] ** 3 if axis.expanded else (3 - 10 * number) * (axes >> number & 1)
        said += slope * point[number]
    return said


Seen = tuple[list[Any], dict[int, bytes]]


def simulate(library: Path, fold: Fold, program: Sequence[Step], *, all_ranks: bool) -> Seen:
    """Rows of the fold's processes, and the bytes that each has heard last."""
    bench = Bench.create(library, fold.world_size, fold=None if all_ranks else fold)
    for rank in bench.ranks:
        stage = sum(at for axis, at in zip(fold.axes, fold.coordinates(rank.index), strict=True) if axis.expanded)
        made: dict[int, int] = {}
        for axes, _, _ in program:
            members = group(fold, rank.index, axes)
            if axes in made:
                continue
            rank.blob(b"group\0" + format_ranks(members).encode())
            rank.communicator(len(made) + 1, len(members), members.index(rank.index), key=1000 * axes + members[0])
            made[axes] = len(made) + 1
        for number, (axes, nbytes, ns) in enumerate(program):
            rank.kernel(f"k{number}-{stage}:{ns * (1 + stage)}")
            rank.collective(made[axes], 4 * nbytes)
        members = group(fold, rank.index, program[-1][0])
        rank.blob(struct.pack("<q", says(fold, rank.index, program[-1][0])))
        rank.emit(
            "COLLECTIVE",
            id=made[program[-1][0]],
            coll=layout.Coll.ALL_GATHER,
            dtype=INT64,
            count=1,
            bytes=8 * len(members),
            ticket=5,
        )
        rank.ask("bytes", "PAYLOAD", ticket=5)
    assert not bench.run() & native.ERROR, bench.engine.error()
    for rank in bench.ranks:
        rank.exit()
    bench.run()
    rows = [(row["rank"], row["kind"], row["name"], row["start"], row["end"]) for row in bench.rows()]
    kept = [row for row in rows if row[0] in fold.real and row[1] in ("KERNEL", "COLLECTIVE")]
    return sorted(kept), {rank.index: rank.payload("bytes") for rank in bench.ranks if rank.index in fold.real}


@settings(
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking would take minutes
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    stages=st.sampled_from((1, 2, 3, 5)),
    sizes=st.lists(st.integers(4, 5), min_size=1, max_size=2),
    star=st.booleans(),
    program=st.lists(st.tuples(st.integers(1, 7), st.integers(1, 5000), st.integers(1, 9000)), min_size=1, max_size=5),
)
def test_folded_is_unfolded(
    engine_library: Path, stages: int, sizes: list[int], star: bool, program: list[Step]
) -> None:
    axes = [f"pp={stages}"] * (stages > 1) + [f"axis{number}={size}" for number, size in enumerate(sizes)]
    axes[-1] += "*" * (star and len(sizes) > 1)
    fold = parse_fold(",".join(axes), stages * prod(sizes))
    assert fold is not None
    everybody = (1 << len(axes)) - 1
    across = everybody & (stages > 1)  # a group across stages may be without the processes of one (docs/scale.md)
    steps = [(everybody if bits & across else bits & everybody or everybody, size, ns) for bits, size, ns in program]
    if stages > STAGES:
        steps.append((everybody, 1, 1))  # whose last numbers all ranks tell
    every = simulate(engine_library, fold, steps, all_ranks=True)
    assert simulate(engine_library, fold, steps, all_ranks=False) == every

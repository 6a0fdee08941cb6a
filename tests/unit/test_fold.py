"""Meshes of which some ranks are processes: who stands for whom."""

from __future__ import annotations

import itertools
from collections import Counter
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantora.errors import PhantoraError
from phantora.fold.discovery import kinds_of_chunks, mesh_of, splits_of
from phantora.fold.mesh import Comparison, Fold, from_dict, to_dict
from phantora.fold.ranges import format_ranks
from phantora.fold.syntax import describe, parse_fold, split_at


def fold(text: str, world: int, *more: int) -> Fold:
    found = parse_fold(text, world, more)
    assert found is not None
    return found


def test_ends_and_a_representative_are_processes() -> None:
    one = fold("dp=1024", 1024)
    assert one.real == (0, 1, one.axes[0].representative, 1023)  # the second too, in a long axis
    assert describe(one) == "dp=1024"
    assert {one.process_of(rank) for rank in range(2, 1023)} == {one.real[2]}
    assert list(one.comparisons()) == [Comparison(one.real[2], 1, 1023, "dp", False)]


def test_ends_run_at_all_stages_and_representatives_at_the_first_and_last() -> None:
    mesh = fold("pp=4,dp=16,tp=8", 512)
    dp, tp = mesh.axes[1].representative, mesh.axes[2].representative
    ends = [(0, 0), (15, 0), (0, 7)]
    one = [(dp, 0), (0, tp)]
    points = [(stage, *end) for stage in range(4) for end in ends]
    points += [(stage, *at) for stage in (0, 3) for at in one] + [(0, dp, tp), (0, 15, 7), (3, 15, 7)]
    assert [mesh.coordinates(rank) for rank in mesh.real] == sorted(points)
    assert mesh.coordinates(mesh.process_of(mesh.rank((0, 5, 0)))) == (0, dp, 0)
    assert mesh.coordinates(mesh.process_of(mesh.rank((1, 5, 7)))) == (1, 0, 7)
    assert mesh.coordinates(mesh.process_of(mesh.rank((2, 5, 5)))) == (2, 0, 0)
    assert len(list(mesh.comparisons())) == 5


def test_stages_between_of_a_long_pipeline_run_their_first_rank() -> None:
    mesh = fold("pp=16,dp=64,tp=8", 8192)
    of_stage = Counter(mesh.coordinates(rank)[0] for rank in mesh.real)
    assert [of_stage[stage] for stage in range(16)] == [7, *[1] * 14, 6]
    assert mesh.coordinates(mesh.process_of(mesh.rank((5, 63, 7)))) == (5, 0, 0)
    assert sum(mesh.represented(rank) for rank in mesh.real) == 8192
    named = fold("pp=16,dp=64,tp=8", 8192, 13)  # a straggler, with its like at all stages
    assert mesh.rank((5, 1, 5)) in named.real and mesh.rank((5, 1, 0)) in named.real
    assert len(fold("pp=16*,dp=64,tp=8", 8192).real) > 16 * 4  # ends and representatives at all
    assert len(fold("cp=16,dp=64,tp=8", 8192).real) > 16 * 3  # parts of a ring, no stages


def test_pipelines_and_stars_are_whole() -> None:
    mesh = fold("pp=4,dp=16,tp=8*", 512)
    assert len(mesh.real) == 4 * 8 * 2 + 2 * 8  # first and last; the representative at the first stage and the last
    assert describe(mesh) == "pp=4:all dp=16 tp=8:all"
    assert parse_fold("pp=3,tp=2*", 6) is None
    assert parse_fold("cp=4,ep=8", 32) is None  # each rank of a ring works on other parts


def test_groups_along_a_star_are_processes_in_all_ranks_or_none() -> None:
    """Ranks that map each other's memory must all be there, wherever one of them is."""
    mesh = fold("pp=3,replicate=4,shard=70,tp=4*", 3 * 4 * 70 * 4, 5)
    groups = Counter(rank // 4 for rank in mesh.real)
    assert set(groups.values()) == {4}
    assert {each.representative % 4 for each in mesh.comparisons()} == {0, 1, 2, 3}  # each is compared
    assert all({each.representative, each.before, each.after} <= set(mesh.real) for each in mesh.comparisons())
    assert len(fold("pp=8,dp=4", 32).real) < len(fold("pp=8*,dp=4", 32).real)


def test_named_ranks_are_processes_at_all_stages() -> None:
    mesh = fold("pp=2,dp=8,tp=8", 128, 13)  # dp 1, tp 5
    for rank in (13, 13 + 64, 8, 5):  # and the first of its groups
        assert rank in mesh.real
    assert from_dict(to_dict(mesh)) == mesh


@pytest.mark.parametrize("text", ["8", "dp=", "dp=x", "=8", "dp=0"])
def test_what_is_no_axis_says_so(text: str) -> None:
    with pytest.raises(PhantoraError, match="is not an axis"):
        parse_fold(text, 8)


def test_sizes_must_be_those_of_the_run() -> None:
    with pytest.raises(PhantoraError, match="have 16 ranks together, the run has 8"):
        parse_fold("dp=4,tp=4", 8)
    with pytest.raises(PhantoraError, match="ranks 0 to 7"):
        parse_fold("dp=8", 8, [8])


def test_process_groups_tell_the_axes() -> None:
    groups = [
        (range(64), ""),
        (range(0, 64, 16), "mesh_pp"),
        (range(0, 16, 4), "mesh_dp_shard"),
        ([0, 1, 2, 3], "TENSOR_MODEL_PARALLEL_GROUP"),
        (range(16), "dp_cp"),
        ([5, 6], "not of rank 0"),
    ]
    assert mesh_of(groups, 64) == "pp=4,dp_shard=4,tensor_model_parallel_group=4"
    cp = [(range(0, 16, 4), "DATA_PARALLEL_GROUP"), (range(4), "CONTEXT_PARALLEL_GROUP")]
    assert mesh_of(cp, 16) == "data_parallel_group=4,cp=4"
    assert mesh_of([(range(8), "")], 8) == "stride1=8"
    assert mesh_of([([0, 1, 8, 9], "")], 16) == "stride8=2,stride2=4,stride1=2"
    with pytest.raises(PhantoraError, match="belong to no mesh"):
        mesh_of([([0, 2], ""), ([0, 3], "")], 12)
    with pytest.raises(PhantoraError, match="no part of a mesh"):
        mesh_of([([0, 1, 3], "")], 8)


def test_the_first_rank_of_a_first_only_axis_represents_all() -> None:
    mesh = fold("pp=4,dp=16/1,tp=8", 512)
    assert describe(mesh) == "pp=4:all dp=16:first tp=8"
    assert {mesh.coordinates(rank)[1] for rank in mesh.real} == {0}
    assert fold("pp=4,dp=16/1,tp=8/1", 512).real == (0, 128, 256, 384)
    assert fold("dp=64/1", 64).real == (0,) and fold("dp=64/1", 64).represented(0) == 64
    assert from_dict(to_dict(mesh)) == mesh


MESHES = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@pytest.mark.parametrize("text", ["pp=2,dp=8,tp=4", "pp=4,dp=8", "pp=6,dp=4,tp=4", "pp=3,replicate=3,shard=4"])
def test_transfers_between_stages_and_their_siblings_are_all_transfers(text: str) -> None:
    """On the way back from the second stage they were counted twice, and those to the last of more than two."""
    mesh = fold(text, prod(int(part.partition("=")[2]) for part in text.split(",")))
    stage = mesh.world_size // mesh.sizes[0]
    for first in range(0, mesh.world_size - stage, stage):
        for way in (1, -1):
            every = [(rank, rank + stage)[::way] for rank in range(first, first + stage)]
            pairs = [pair for pair in every if not set(mesh.real).isdisjoint(pair)]
            others = [pair for of in pairs for pair in mesh.siblings(of)]
            assert sorted([*pairs, *others]) == sorted(every)


@settings(deadline=None, max_examples=60)
@given(MESHES, st.data())
def test_groups_and_their_siblings_are_all_groups(sizes: list[int], data: st.DataObject) -> None:
    """Along any axes together: groups with a process, and those for which they stand, are each group once."""
    world = 1
    for size in sizes:
        world *= size
    marks = [data.draw(st.sampled_from(("", "", "*", "~", "/1"))) for _ in sizes]
    axes = [f"a{i}={size}{mark}" for i, (size, mark) in enumerate(zip(sizes, marks, strict=True))]
    splits = data.draw(st.dictionaries(st.integers(0, len(sizes) - 1), st.lists(st.integers(0, 9), max_size=3)))
    mesh = parse_fold(",".join(axes), world, splits=splits)
    if mesh is None:
        return
    assert from_dict(to_dict(mesh)) == mesh
    represented = Counter(mesh.process_of(rank) for rank in range(world))
    assert {process: mesh.represented(process) for process in mesh.real} == represented
    along = data.draw(st.sets(st.integers(0, len(sizes) - 1)))
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(world):
        point = mesh.coordinates(rank)
        groups.setdefault(tuple(at for i, at in enumerate(point) if i not in along), []).append(rank)
    real = set(mesh.real)
    found: list[tuple[int, ...]] = []
    for group in groups.values():
        if real & set(group):
            assert group[0] in real  # who makes the id of a communicator is a process
            siblings = mesh.siblings(group)
            assert all(real.isdisjoint(sibling) for sibling in siblings)
            assert mesh.siblings(group[::-1]) == [sibling[::-1] for sibling in siblings]  # the way back has the same
            found += [tuple(group), *siblings]
    assert sorted(found) == sorted(map(tuple, groups.values()))


@given(st.lists(st.integers(0, 10_000), unique=True, max_size=200))
def test_runs_name_all_ranks(ranks: list[int]) -> None:
    parts = [part for part in format_ranks(ranks).split(",") if part]
    named = [tuple(map(int, part.replace("+", " ").replace("x", " ").split())) for part in parts]
    assert list(itertools.chain.from_iterable(range(a, a + s * n, s) if s else [a] for a, s, n in named)) == ranks


def test_runs_are_short_where_ranks_are_regular() -> None:
    assert format_ranks(range(8192)) == "0+1x8192"
    assert format_ranks([3, 11, 19, 27]) == "3+8x4"
    assert format_ranks([5]) == "5+1x1"
    assert format_ranks([0, 1, 8, 9]) == "0+1x2,8+1x2"


def test_a_tilde_marks_an_axis_whose_ranks_differ_in_their_own_work() -> None:
    uneven = fold("dp=8~,tp=4", 32)
    assert [axis.uneven for axis in uneven.axes] == [True, False] and not uneven.axes[0].expanded
    assert describe(uneven) == "dp=8:uneven tp=4" and from_dict(to_dict(uneven)) == uneven
    assert {each.axis: each.uneven for each in uneven.comparisons()} == {"dp": True, "tp": False, "dp x tp": True}


@pytest.mark.parametrize(
    ("short", "words"),
    [("dp=16/1", "dp=16:first"), ("dp=16*,tp=9", "dp=16:all,tp=9"), ("dp=8~,tp=4", "dp=8:uneven,tp=4")],
)
def test_short_forms_mean_the_words(short: str, words: str) -> None:
    world = prod(int(part.partition("=")[2].rstrip("*~").partition("/")[0]) for part in short.split(","))
    assert parse_fold(short, world) == parse_fold(words, world) is not None
    with pytest.raises(PhantoraError, match="is not an axis"):
        parse_fold("dp=8:some", 8)


def test_a_dimension_that_the_axis_does_not_divide_has_ranks_of_several_kinds() -> None:
    """8,192 ranks cut dimensions in chunks: of 4,096 rows the first 4,096 have one, of 11,008 the first 5,504 two, of
    32,000 the first 8,000 four; of 10 rows 4 ranks have 3, 3, 3 and 1."""
    assert sorted(at for rows in (4096, 11008, 32000) for at in kinds_of_chunks(rows, 8192)) == [4096, 5504, 8000]
    assert kinds_of_chunks(10, 4) == [3] and kinds_of_chunks(8, 4) == [] and kinds_of_chunks(9, 4) == [3]
    assert kinds_of_chunks(9, 8) == [4, 5]
    text, splits = mesh_of([(range(8192), "")], 8192), {0: [4096, 5504, 8000]}
    mesh = parse_fold(text, 8192, splits=splits)
    assert mesh is not None and mesh.axes[0].ends == (0, 1, 4096, 4097, 5504, 5505, 8000, 8001, 8191)
    low, two, four, last = mesh.axes[0].representatives
    assert 1 < low < 4096 < 4097 < two < 5504 < 5505 < four < 8000 < 8001 < last < 8191
    assert [mesh.process_of(rank) for rank in (2, 4095, 4096, 5000, 7999, 8190)] == [low, low, 4096, two, four, last]
    assert sum(mesh.represented(rank) for rank in mesh.real) == 8192 and mesh.represented(low) == 4094
    borders = [(each.before, each.after) for each in mesh.comparisons()]
    assert borders == [(1, 4096), (4097, 5504), (5505, 8000), (8001, 8191)]


def test_splits_are_those_of_the_axes_that_share_a_dimension() -> None:
    groups = [(range(16), "dp"), (range(0, 16, 4), "outer"), (range(4), "inner")]
    assert splits_of(groups, 16, [(3, 4)]) == {0: [3], 1: [3]}  # either may be meant
    assert splits_of(groups, 16, [(24, 16)]) == {0: [3]}  # twelve ranks of sixteen have two rows
    assert splits_of(groups, 16, [(9, 16)]) == {
        0: [2, 3]
    }  # the tenth rank has none: the third of the outer four is mixed
    assert splits_of(groups, 16, [(32, 16), (5, 7)]) == {}


def test_a_representative_that_is_unlike_its_neighbours_becomes_an_end() -> None:
    mesh = fold("dp=16,tp=8", 128)
    dp = mesh.axes[0].representative
    split = split_at(mesh, mesh.rank((dp, 0)))
    assert split is not None and split.axes[0].ends == (0, dp, 15) and split.axes[1] == mesh.axes[1]
    assert sum(split.represented(rank) for rank in split.real) == 128
    assert split_at(mesh, 0) is None
    assert from_dict(to_dict(split)) == split


def test_logs_with_older_keys_are_read() -> None:
    new = fold("dp=8,tp=2:all", 16)
    names = {"representative": "witness", "expanded": "whole", "first_only": "lone", "full_group": "starred"}
    axes = [{names.get(key, key): value for key, value in axis.items()} for axis in to_dict(new)["axes"]]
    for axis in axes:
        axis["witness"] = sum(axis.pop("representatives"))
    assert "witness" in axes[0] and from_dict({"axes": axes, "named": []}) == new

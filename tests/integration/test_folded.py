"""Folded runs: a few processes stand for all ranks and come to the numbers of all; what does not fold is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from phantora.trace.reader import open_log
from tests.support.runs import Run, environment, trace

PROGRAM = str(Path(__file__).with_name("folded_program.py"))


def run(folder: Path, mode: str, *options: str, check: bool = True) -> Run:
    cluster = {"pp": "3x3xH100", "long_pp": "6x3xH100"}.get(mode, "1x8xH100")
    mode = mode.removeprefix("long_")
    given = ("--cluster", cluster, "--hang-timeout", "60", *options, PROGRAM, mode)
    return trace(folder, *given, check=check, timeout=500)


def printed(run: Run) -> dict[int, dict[str, Any]]:
    lines = [json.loads(line) for line in re.findall(r"\{.*\}", run.out)]
    return {line["rank"]: line for line in lines}


@pytest.mark.parametrize(
    ("mode", "axes", "processes"),
    [
        ("fsdp", "dp=8", 3),
        ("tp", "dp=2,tp=4", 5),
        ("hsdp", "replicate=2,shard=4", 5),
        ("pp", "pp=3,dp=3", 8),
        ("long_pp", "pp=6,dp=3", 10),
        ("symmetric", "dp=4,tp=2:all", 6),
        ("parts", "dp=8:uneven", 5),
    ],
)
def test_folded_is_unfolded(tmp_path: Path, mode: str, axes: str, processes: int) -> None:
    for name in ("all", "few"):
        (tmp_path / name).mkdir()
    every = printed(run(tmp_path / "all", mode))
    folded = run(tmp_path / "few", mode, "--fold", axes)
    few = printed(folded)
    ranks = {"pp": 9, "long_pp": 18}.get(mode, 8)
    assert len(every) == ranks and len(few) == processes
    assert ("folded: rank 5 has the most pieces of the optimizer, 5" in folded.err) is (mode == "parts")
    assert f"folded: {processes} of {ranks} ranks run as processes" in folded.err
    for rank, found in few.items():
        assert found["peak"] == every[rank]["peak"]
        assert found["step_ns"] == pytest.approx(every[rank]["step_ns"], rel=0.001)
    log = open_log(folded.log)
    assert log.metadata.world_size == ranks
    sizes = [axis["size"] for axis in log.metadata.extra["fold"]["axes"]]
    assert sizes == [int(size) for size in re.findall(r"\d+", axes)]


def test_ranks_hear_what_the_folded_ones_would_say(tmp_path: Path) -> None:
    found = printed(run(tmp_path, "exchange", "--fold", "dp=8"))
    assert {rank: line["world"] for rank, line in found.items()} == {0: 8, 2: 8, 7: 8}


def test_a_mesh_of_many_groups_has_the_names_and_takes_the_time_of_all(tmp_path: Path) -> None:
    options = ("--cluster", "128x8xH100", "--hang-timeout", "60", "--fold", "dp=512:first,tp=2")
    found = printed(trace(tmp_path, *options, PROGRAM, "meshes", check=True, timeout=500))
    assert found
    for line in found.values():
        assert 0.8 < line["mesh_ns"] / line["groups_ns"] < 4  # a mesh takes its rows from a tensor, too


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("other_shapes", "cannot fold the axis dp: rank 2 represents the ranks between 0 and 7 but matches neither"),
        ("other_object", "rank 2 gives another object than rank 0"),
        ("uneven_numbers", r"do not grow evenly with the rank"),
        ("skipped_collective", "cannot fold the axis dp: rank 2 represents"),
        ("receives_from_folded", "bytes that matter from rank"),
        ("gloo", "cannot fold all_gather of the gloo group of 8 ranks, the first 0: its ranks give different bytes"),
    ],
)
def test_what_does_not_fold_is_refused_by_name(tmp_path: Path, mode: str, says: str) -> None:
    refused = run(tmp_path, mode, "--fold", "dp=8", check=False)
    assert refused.status != 0
    assert says in refused.err, refused.err[-3000:]
    assert "--fold off" in refused.err


def test_axes_that_do_not_fit(tmp_path: Path) -> None:
    for axes, says in (("dp=4", "the axes have 4 ranks together, the run has 8"), ("8", "is not an axis")):
        refused = run(tmp_path, "fsdp", "--fold", axes, check=False)
        assert refused.status != 0 and says in refused.err


SMALL_MACHINE = """
import sys
import phantora.runs.fold
phantora.runs.fold.free_memory = lambda: 1
from phantora.cli.main import main
main()
"""

NO_MESH = """
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
dist.new_group([0, 1, 3])
dist.all_reduce(torch.ones(1 << 20, device="cuda"))
"""


def folded_unasked(folder: Path, cluster: str, *script: str) -> subprocess.CompletedProcess[str]:
    """A run on a machine without memory for all ranks."""
    return subprocess.run(
        [sys.executable, "-c", SMALL_MACHINE, "trace", "--no-recording", "--cluster", cluster, *script],
        cwd=folder,
        env=environment(shared=True),
        capture_output=True,
        text=True,
        check=False,
    )


def test_dimensions_that_ranks_do_not_divide_fold_by_kinds_of_ranks(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    every = printed(run(tmp_path / "all", "uneven_rows"))
    done = folded_unasked(tmp_path, "1x8xH100", PROGRAM, "uneven_rows")
    assert done.returncode == 0, done.stderr
    few = {line["rank"]: line for line in map(json.loads, re.findall(r"\{.*\}", done.stdout))}
    assert {0, 4, 6, 7} < set(few) and set(few) != set(every)  # of each kind one
    for rank, found in few.items():
        assert found["peak"] == every[rank]["peak"]
        assert found["step_ns"] == pytest.approx(every[rank]["step_ns"], rel=0.001)


def test_kinds_of_ranks_that_the_run_meets_are_split(tmp_path: Path) -> None:
    done = folded_unasked(tmp_path, "1x8xH100", PROGRAM, "kinds")
    assert done.returncode == 0, done.stderr
    assert "rank 2 represents the ranks between 0 and 7 but matches neither" in done.stderr
    assert "; the run begins again with rank 2 as a kind of its own" in done.stderr
    assert len(re.findall("folded: . of 8 ranks", done.stderr)) > 1


def test_ranks_that_do_not_fit_are_folded_unasked(tmp_path: Path) -> None:
    (tmp_path / "uneven.py").write_text(NO_MESH)
    for cluster, script, says in (
        ("1x8xH100", (PROGRAM, "fsdp"), "folded: 3 of 8 ranks run as processes"),
        ("1x4xH100", ("uneven.py",), "note: --fold auto: .* are a process group, no part of a mesh; .*; all ranks run"),
    ):
        done = folded_unasked(tmp_path, cluster, *script)
        assert done.returncode == 0 and re.search(says, done.stderr), done.stderr

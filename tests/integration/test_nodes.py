"""Runs whose ranks are children of agents (`--ray`), here plain processes: the log is that of the local run."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.robustness.sample_logs import difference, rows
from tests.support import runs

pytestmark = pytest.mark.ranks
ROOT = Path(__file__).resolve().parents[2]

# More records than a ring has places; a rank that sleeps in a store until another one has an answer; large replies.
PROGRAM = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
print("rank", rank, "of", dist.get_world_size(), "in", os.getcwd(), flush=True)
if rank == 1 and "FAILS" in os.environ:
    raise ValueError("no such layer")
torch.cuda.set_device(0)
x = torch.ones(512, 512, device="cuda")
for _ in range(3000):
    x = x + 1
store = dist.distributed_c10d._get_default_store()
for sender in range(4):
    if rank == sender % 2:
        dist_sum = torch.ones(1 << 20, device="cuda").sum()
        torch.cuda.synchronize()
        store.set(f"sent{sender}", "1")
    else:
        store.wait([f"sent{sender}"])
        x = x * 2
gathered = [None] * 2
dist.all_gather_object(gathered, "x" * 70000 + str(rank))
assert [len(text) for text in gathered] == [70001, 70001]
dist.all_reduce(x)
dist.destroy_process_group()
"""


def trace(folder: Path, *more: str, options: Sequence[str] = ()) -> runs.Run:
    command = [
        sys.executable,
        "-m",
        "tests.support.agents",
        "trace",
        "-o",
        "agents.arrow",
        "--no-summary",
        "--ray",
        "2",
    ]
    own = {**runs.environment(shared=True), "PYTHONPATH": str(ROOT), **dict(one.split("=") for one in more)}
    done = subprocess.run(
        [*command, *options, "--no-recording", "--cluster", "2x1xH100", "program.py"],
        cwd=folder,
        env=own,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return runs.Run(done.returncode, done.stdout, done.stderr, folder)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nodes")
    (folder / "program.py").write_text(PROGRAM)
    return folder


def test_the_log_is_that_of_the_local_run(place: Path) -> None:
    done = trace(place)
    assert done.status == 0, done.err
    assert folders(done) == {0: str(place), 1: str(place)}
    local = runs.trace(place, "--cluster", "2x1xH100", "program.py")
    assert difference(rows(place / "agents.arrow"), rows(local.log)) == ""


def folders(done: runs.Run) -> dict[int, str]:
    """Folder of each rank."""
    return {int(rank): where for rank, where in re.findall(r"rank (\d) of 2 in (.*)", done.out)}


def test_the_folder_is_shipped(place: Path) -> None:
    (place / "inner").mkdir()
    (place / "inner" / "program.py").write_text(
        PROGRAM.partition("torch.cuda.set_device")[0] + 'torch.ones(8, device="cuda").sum()\n'
    )
    done = trace(place / "inner", options=("--working-dir", ".."))
    assert done.status == 0, done.err
    found = folders(done)
    assert sorted(found) == [0, 1] and all(re.search(r"phantora-shipped-\w+/inner$", one) for one in found.values())


def test_a_failure_names_its_place_and_keeps_the_log(place: Path) -> None:
    done = trace(place, "FAILS=1")
    assert done.status == 1 and "rank 1 at program.py:10: ValueError: no such layer (node n1)" in done.err, done.err
    assert "Traceback" not in done.err.replace("[rank1]: Traceback", "")
    assert "phantora: partial log " in done.err

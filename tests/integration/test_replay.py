"""A recorded run on other clusters, beside runs of the script there."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from support.runs import SAMPLES, Run, trace

from phantora.trace.analysis.analyze import analyze
from phantora.trace.reader import open_log
from phantora.trace.schema import METADATA_KEY

SCRIPT = [str(SAMPLES / "llama_fsdp2.py"), "--dim", "4096", "--layers", "4", "--heads", "32", "--kv-heads", "8"]
SCRIPT += ["--ffn", "14336", "--vocab", "8000", "--seq", "4096", "--steps", "3", "--warmup", "0"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trace(tmp_path_factory.mktemp("recorded"), "--cluster", "1x2xH100", *SCRIPT)


def replay(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "phantora", "replay", *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=240, check=False)


def again(run: Run, directory: Path, *arguments: str) -> Path:
    done = replay(str(run.log), "-q", "-o", "again.arrow", *arguments, directory=directory)
    assert done.returncode == 0, done.stderr
    return directory / "again.arrow"


def contents(path: Path) -> tuple[bytes, pa.Table]:
    with pa.ipc.open_file(path) as file:
        return file.schema.metadata[METADATA_KEY], file.read_all()


def step(path: Path) -> float:
    return statistics.median(part.times.time for part in analyze(open_log(path), details=False).steps[1:])


def test_on_the_same_cluster_it_is_the_same_log(run: Run, tmp_path: Path) -> None:
    copy = again(run, tmp_path)
    assert contents(copy) == contents(run.log)
    assert open_log(copy).recording() == open_log(run.log).recording()


@pytest.mark.parametrize("cluster", ["2x1xH100", "1x2xA100-80GB"])
def test_on_another_cluster_it_agrees_with_a_fresh_run(run: Run, tmp_path: Path, cluster: str) -> None:
    fresh = trace(tmp_path, "--cluster", cluster, *SCRIPT)
    copy = again(run, tmp_path, "--cluster", cluster)
    assert step(copy) == pytest.approx(step(fresh.log), rel=0.01)
    assert abs(step(copy) / step(run.log) - 1) > 0.05  # it is another cluster indeed
    told = open_log(copy).metadata
    assert (told.cluster, told.ranks_per_host) == (cluster, int(cluster.split("x")[1]))


def test_what_cannot_be_replayed_is_said_in_one_line(run: Run, tmp_path: Path) -> None:
    cut = tmp_path / "cut.arrow"
    cut.write_bytes(run.log.read_bytes()[:-3000])
    bare = tmp_path / "bare.arrow"
    assert replay(str(run.log), "-q", "--no-recording", "-o", str(bare), directory=tmp_path).returncode == 0
    for arguments, said in (
        ([str(run.log), "--cluster", "1x4xH100"], "the run had 2 ranks, one a GPU, and 1x4xH100 has 4 GPUs"),
        ([str(bare)], "kept no recording"),
        ([str(cut)], "the run was killed"),
        ([str(run.log), "-o", str(run.log)], "cannot write over the log it reads"),
        ([str(run.log), "--gpu", "H1000"], "H1000"),
    ):
        done = replay(*arguments, directory=tmp_path)
        assert done.returncode == 1 and said in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1 and not done.stdout
    assert json.loads(replay(str(run.log), "--json", "--no-summary", directory=tmp_path).stdout)["rows"] > 0

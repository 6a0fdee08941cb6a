"""A recorded run on other clusters, next to runs of the script there; and what diff makes of each single change."""

from __future__ import annotations

import json
import statistics
import subprocess
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from click.testing import CliRunner

from phantora.cli.diff import diff
from phantora.cli.view import site_of
from phantora.trace.analysis.analyze import Filters, analyze
from phantora.trace.analysis.steps import find_steps
from phantora.trace.analysis.summary import held_up
from phantora.trace.reader import open_log
from phantora.trace.schema import METADATA_KEY
from tests.support.runs import SAMPLES, Run, phantora, trace

SCRIPT = [str(SAMPLES / "llama_fsdp2.py"), "--dim", "4096", "--layers", "4", "--heads", "32", "--kv-heads", "8"]
SCRIPT += ["--ffn", "14336", "--vocab", "8000", "--seq", "4096", "--steps", "3", "--warmup", "0"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trace(tmp_path_factory.mktemp("recorded"), "--cluster", "1x2xH100", *SCRIPT, recording=True)


def replay(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return phantora("replay", *arguments, cwd=directory)


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


@pytest.mark.parametrize(
    ("cluster", "close"),
    [("2x1xH100", 0.01), ("1x2xA100-80GB", 0.02)],  # on A100 torch chooses flash attention, which no replay changes
)
def test_on_another_cluster_it_agrees_with_a_fresh_run(run: Run, tmp_path: Path, cluster: str, close: float) -> None:
    fresh = trace(tmp_path, "--cluster", cluster, *SCRIPT, recording=True)
    copy = again(run, tmp_path, "--cluster", cluster)
    assert step(copy) == pytest.approx(step(fresh.log), rel=close)
    assert abs(step(copy) / step(run.log) - 1) > 0.05  # it is another cluster indeed
    reported = open_log(copy).metadata
    assert (reported.cluster, reported.ranks_per_host) == (cluster, int(cluster.split("x")[1]))


def test_samples_are_equal_for_equal_seeds_and_change_no_row(run: Run, tmp_path: Path) -> None:
    logs = [again(run, tmp_path, "--samples", "6", "--force").rename(tmp_path / f"{turn}.arrow") for turn in "ab"]
    first, second = (open_log(log).trailer["spread"] for log in logs)
    assert first == second and {name: len(set(times)) for name, times in first.items()} == {
        "steps_ns": 6,
        "equal_ranks_ns": 6,
    }
    assert contents(logs[0]) == contents(run.log)
    found = analyze(open_log(logs[0]), details=False).headline.spread
    assert found is not None and found.low < found.median < found.high
    assert found.median == pytest.approx(step(run.log), rel=0.2)


def test_a_fault_touches_the_steps_of_its_time(run: Run, tmp_path: Path) -> None:
    middle = find_steps(open_log(run.log)).of_rank[0][1]
    begin, lasts = middle.start + 1000, (middle.end - middle.start) // 2
    slow = open_log(again(run, tmp_path, "--fault", f"{begin}ns,{lasts}ns,rank=1:3", "-o", "again.perfetto"))
    report = analyze(slow)
    (fault,) = report.faults
    assert fault.steps == [middle.number] and fault.time > 1.2 * (middle.end - middle.start)
    assert {one.number: one.note for one in report.steps}[middle.number] == "fault"
    assert report.details is not None and "Fault: rank=1:3 from" in " ".join(report.details.findings)
    assert b"rank=1:3" in (tmp_path / "again.perfetto").read_bytes()


def test_what_if_of_the_page_is_a_replay(run: Run, tmp_path: Path) -> None:
    found = orjson.loads(site_of(str(run.log), None, Filters()).what_if("a", {"straggler": "1.5"}))
    slow = again(run, tmp_path, "--straggler", "rank=0:1.5")
    assert found["times"]["time"] == analyze(open_log(slow), details=False).steady.time


def test_the_gain_without_a_straggler_is_that_of_the_run_without_it(run: Run, tmp_path: Path) -> None:
    slow = analyze(open_log(again(run, tmp_path, "--straggler", "rank=1:1.3")), details=False)
    (late,) = (delay for delay in slow.delays if delay.rank == 1)
    gain = slow.steady.time - analyze(open_log(run.log), details=False).steady.time
    assert late.gain is not None
    assert late.gain == pytest.approx(gain, rel=0.03) and gain > 0.1 * slow.steady.time
    assert f"without its factor the step takes {100 * late.gain / slow.steady.time:.1f} % less" in held_up(slow)


def test_what_cannot_be_replayed_is_said_in_one_line(run: Run, tmp_path: Path) -> None:
    cut = tmp_path / "cut.arrow"
    cut.write_bytes(run.log.read_bytes()[:-20_000])  # more than the footer
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


def first_lines(a: Path, b: Path) -> list[str]:
    """First lines of diff, there and back."""
    reported = [CliRunner().invoke(diff, [str(x), str(y)], catch_exceptions=False).output for x, y in ((a, b), (b, a))]
    return [text.splitlines()[0] for text in reported]


def kind_of(line: str) -> str:
    """``network`` of ``Slower by 2 ms a step (+3%): network: ...``."""
    return line.partition("): ")[2].partition(":")[0].replace("faster", "slower")


SIMULATED = {
    ("--degrade", "*nvswitch*=0.25"): ("Slower", "network: links *nvswitch* carry 0.25 of their bandwidth"),
    ("--straggler", "rank=1:1.3"): ("Slower", "rank 1 is slower than the others"),
    ("--gpu", "A100-80GB"): ("Slower", "another GPU: H100-SXM -> A100-SXM-80GB"),
    ("--gpu", "H200"): ("Faster", "another GPU: H100-SXM -> H200-SXM"),
}


@pytest.mark.parametrize("change", SIMULATED, ids=lambda change: change[1])
def test_diff_names_a_change_of_the_cluster(run: Run, tmp_path: Path, change: tuple[str, str]) -> None:
    there, back = first_lines(run.log, again(run, tmp_path, *change))
    slower, cause = SIMULATED[change]
    assert there.startswith(slower) and cause in there
    assert back.startswith("Faster" if slower == "Slower" else "Slower")
    assert kind_of(back) == kind_of(there)


@pytest.mark.parametrize(
    ("option", "value", "there", "back"),
    [
        ("--batch", "2", ": batch 1 -> 2", ": batch 2 -> 1"),
        ("--ffn", "18432", "the model's shapes", "the model's shapes"),
        ("--ac", "full", "activation checkpointing on", "activation checkpointing off"),
    ],
)
def test_diff_names_a_change_of_the_script(
    run: Run, tmp_path: Path, option: str, value: str, there: str, back: str
) -> None:
    lines = first_lines(run.log, trace(tmp_path, "--cluster", "1x2xH100", *SCRIPT, option, value, recording=True).log)
    assert lines[0].startswith("Slower") and there in lines[0]
    assert lines[1].startswith("Faster") and back in lines[1]


def test_diff_names_another_tensor_parallel_size(tmp_path: Path) -> None:
    script = [str(SAMPLES / "llama_tp.py"), "--sp", *SCRIPT[1:], "--layers", "1"]
    logs = []
    for ranks in (2, 4):
        (tmp_path / str(ranks)).mkdir()
        logs.append(trace(tmp_path / str(ranks), "--cluster", f"1x{ranks}xH100", *script, recording=True).log)
    there, back = first_lines(*logs)
    reported = "tensor-parallel layout: sizes of the groups that communicate"
    assert f"{reported} 2 (2 ranks) -> 4 (4 ranks)" in there and f"{reported} 4 (4 ranks) -> 2 (2 ranks)" in back


def test_diff_names_another_division_of_the_model(run: Run, tmp_path: Path) -> None:
    """Sharded parameters against tensor parallelism over as many ranks."""
    divided = trace(tmp_path, "--cluster", "1x2xH100", str(SAMPLES / "llama_tp.py"), "--sp", *SCRIPT[1:])
    there, back = first_lines(run.log, divided.log)
    assert "parallel layout: a rank does 1/2 of the work for each of its tokens" in there
    assert "parallel layout: a rank does 2 times the work for each of its tokens" in back

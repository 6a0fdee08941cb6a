"""Sweeps of real runs: the numbers of single runs, what fails, what does not fit, stopping, Ray."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import phantora
from phantora.run_process import PHANTORA
from phantora.sweeps.journal import read
from tests.support import runs

pytestmark = pytest.mark.ranks

SCRIPT = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int)
parser.add_argument("--steps", type=int)
arguments = parser.parse_args()
if arguments.width == 3:
    raise ValueError("three is no width")
options = {"device": "cuda", "dtype": torch.bfloat16}
model = torch.nn.Linear(arguments.width, arguments.width, **options)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(arguments.steps):
    model(torch.ones(4096, arguments.width, **options)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SPACE = {
    "matrix": {"width": [1024, 4096]},
    "arguments": {"width": "--width"},
    "steps": {"argument": "--steps", "first": 3},
    "tokens": "4096",
}
TOML = """
tokens = "4096"
[matrix]
width = [1024, 4096, 3, 150000]
[arguments]
width = "--width"
[steps]
argument = "--steps"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sweep")
    (made / "train.py").write_text(SCRIPT)
    (made / "sweep.toml").write_text(TOML)
    return made


def sweep(folder: Path, *arguments: str) -> list[str]:
    return [*PHANTORA, "sweep", "sweep.toml", *arguments, "--", "train.py"]


def rows(folder: Path, output: str) -> dict[int, dict[str, Any]]:
    return {row["width"]: row for row in json.loads((folder / output / "sweep.json").read_text())}


@pytest.fixture(scope="module")
def done(folder: Path) -> subprocess.CompletedProcess[str]:
    """One sweep, stopped after its first points and started again: what the second start printed."""
    command = sweep(folder, "--top", "1")
    journal = folder / "sweep/journal.jsonl"
    slowly = sweep(folder, "--top", "1", "--jobs", "1")
    process = subprocess.Popen(slowly, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        while process.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < 2):
            time.sleep(0.1)
        refused = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert refused.returncode == 1 and "another sweep is at work" in refused.stderr
        process.send_signal(signal.SIGTERM)
        _, reported = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130 and "goes on" in reported
    assert not _running(folder / "sweep")
    before, _ = read(journal)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    after, _ = read(journal)
    assert after[: len(before)] == before and len({result.key for result in after}) == len(after) == 4
    return done


def test_a_stopped_sweep_goes_on_to_the_numbers_of_single_runs(
    folder: Path, done: subprocess.CompletedProcess[str]
) -> None:
    assert done.returncode == 0, done.stderr
    found = rows(folder, "sweep")
    assert [row["status"] for row in found.values()] == ["ran", "ran", "out of memory", "failed"]
    for width in (1024, 4096):
        words = shlex.split(shlex.join(found[width]["command"]))
        assert words[:2] == ["phantora", "trace"]
        given = (*words[2 : words.index("--output")], *words[words.index("--output") + 2 :])
        single = runs.trace(folder, "--force", *given, recording=True)
        summary = phantora.open(single.log).summary()
        for name in ("step_time_ns", "lowest_ns", "highest_ns", "steps", "error", "mfu", "peak_reserved_bytes"):
            assert found[width][name] == summary[name], name
    assert found[1024]["rank"] == 1 and (folder / "sweep/best-1.perfetto").exists()
    assert found[1024]["log"] and not found[4096]["log"]  # the best's alone is kept
    assert found[150000]["needs_bytes"] > found[150000]["capacity_bytes"] > 0
    assert "torchrun --standalone --nproc-per-node 1 train.py --width 1024" in done.stdout.splitlines()


def test_others_say_why_not(folder: Path, done: subprocess.CompletedProcess[str]) -> None:
    assert "ValueError: three is no width" in rows(folder, "sweep")[3]["error_text"]
    assert "three is no width" in done.stdout and "does not fit: needs" in done.stdout


def _running(folder: Path) -> list[str]:
    """Command lines of processes that have to do with `folder`."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words or f"{folder.name}/points" in words:
            found.append(words)
    return found


def test_ray_gives_the_same_numbers_though_a_worker_is_killed(
    folder: Path, done: subprocess.CompletedProcess[str]
) -> None:
    pytest.importorskip("ray")
    program = f"""
import os, signal, threading, time, phantora
from pathlib import Path
def kill_one():
    while True:
        time.sleep(0.05)
        for one in Path("/proc").glob("[0-9]*"):
            try:
                words = (one / "cmdline").read_bytes()
                parent = int((one / "stat").read_text().rpartition(")")[2].split()[1])
                worker = Path(f"/proc/{{parent}}/cmdline").read_bytes().startswith(b"ray::")
            except OSError:
                continue
            if worker and b"rayed/" + b"points" in words:  # in parts, or this program would be found
                os.kill(parent, signal.SIGKILL)
                return print("killed", flush=True)
threading.Thread(target=kill_one, daemon=True).start()
table = phantora.sweep({SPACE!r}, target=["train.py"], output="rayed", ray="local")
print(table.to_pylist())
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "killed" in done.stdout, done.stderr[-3000:]
    rayed, single = rows(folder, "rayed"), rows(folder, "sweep")
    assert [rayed[width]["step_time_ns"] for width in (1024, 4096)] == [single[w]["step_time_ns"] for w in (1024, 4096)]
    assert len(read(folder / "rayed/journal.jsonl")[0]) == 2

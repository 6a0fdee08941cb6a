"""Ranks on two agents, of which something is killed: nothing stays behind, a line names the place, the log is kept."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import runs

pytestmark = pytest.mark.ranks
ROOT = Path(__file__).resolve().parents[2]
MARK = "PHANTORA_TEST_MARK"
END_SECONDS = 30.0
PROGRAM = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
x = torch.ones(1024, device="cuda")
for step in range(10**9):
    for _ in range(50):
        x = x + 1
    dist.all_reduce(x)
    torch.cuda.synchronize()
    if step == 400:
        print("process", dist.get_rank(), os.getpid(), flush=True)
"""


def living(mark: str) -> dict[int, str]:
    """Command lines of the processes with `mark` in their environment."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes() and (folder / "stat").read_text().split()[-50] != "Z":
                found[int(folder.name)] = (folder / "cmdline").read_bytes().decode().replace("\0", " ")
        except OSError:
            continue
    return found


class Started:
    """A run of two ranks that has come to its collectives."""

    def __init__(self, folder: Path) -> None:
        (folder / "program.py").write_text(PROGRAM)
        (folder / "tmp").mkdir()
        self.folder, self.mark = folder, uuid.uuid4().hex
        self._shared_memory = {*Path("/dev/shm").iterdir()}
        more = {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp"), MARK: self.mark}
        self.driver = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.support.agents", "trace", "--ray", "2", "-o", "run.arrow"),
                *("--no-summary", "--no-recording", "--cluster", "2x1xH100", "program.py"),
            ],
            cwd=folder,
            env={**runs.environment(shared=False), **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.driver.stdout is not None
        self.ranks: dict[int, int] = {}
        for line in self.driver.stdout:
            if found := re.search(r"process (\d) (\d+)", line):
                self.ranks[int(found[1])] = int(found[2])
            if len(self.ranks) == 2:
                break
        self.agents = [pid for pid, command in sorted(living(self.mark).items()) if "phantora.nodes.agent" in command]

    def end(self) -> tuple[int, str]:
        """Waits for the end; exit status and errors. Nothing may be left."""
        _, err = self.driver.communicate(timeout=END_SECONDS)
        deadline = time.monotonic() + END_SECONDS
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left == []
        assert [*(self.folder / "tmp").glob("*phantora*")] == []
        assert {*Path("/dev/shm").iterdir()} <= self._shared_memory
        return self.driver.returncode, err

    def _left(self) -> list[str]:
        ranks = [f"rank {rank}" for rank, pid in self.ranks.items() if Path(f"/proc/{pid}").exists()]
        return [*living(self.mark).values(), *ranks]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    run = Started(tmp_path)
    assert len(run.agents) == len(run.ranks) == 2, run.driver.communicate()
    yield run
    run.driver.kill()
    for pid in living(run.mark):
        os.kill(pid, signal.SIGKILL)


def test_a_killed_agent(started: Started) -> None:
    os.kill(started.agents[1], signal.SIGKILL)
    status, err = started.end()
    assert status == 1
    assert err.endswith("FAILED: node n1 (ranks 1): the connection to its agent has ended (status -9)\n")
    assert "phantora: partial log run.arrow" in err and "Traceback" not in err
    assert len(runs.rows(started.folder / "run.arrow", "start")["start"]) > 1000


def test_a_killed_rank(started: Started) -> None:
    os.kill(started.ranks[1], signal.SIGKILL)
    status, err = started.end()
    assert status == 128 + signal.SIGKILL
    assert re.search(r"^FAILED: rank 1 \(host 1, GPU 0, node n1\) was killed by SIGKILL", err, re.M), err
    assert "phantora: partial log run.arrow" in err


def test_an_interrupted_driver(started: Started) -> None:
    started.driver.send_signal(signal.SIGINT)
    status, err = started.end()
    assert status == 128 + signal.SIGINT
    assert "phantora: interrupted by SIGINT; partial log run.arrow has no steps\n" in err


def test_a_killed_driver(started: Started) -> None:
    log = started.folder / "run.arrow"
    deadline = time.monotonic() + END_SECONDS
    while log.stat().st_size < 1 << 20 and time.monotonic() < deadline:  # the first batch of rows
        time.sleep(0.05)
    os.kill(started.driver.pid, signal.SIGKILL)
    started.end()
    assert len(runs.rows(log, "start")["start"]) > 1000

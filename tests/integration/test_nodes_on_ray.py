"""Runs on two nodes of a Ray cluster on this machine: logs, the folder that is shipped, a node that is lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phantora.run_process import PHANTORA
from tests.integration.test_nodes_lost import END_SECONDS
from tests.integration.test_nodes_lost import PROGRAM as ENDLESS
from tests.robustness.sample_logs import difference, rows
from tests.support import runs

try:
    from ray.cluster_utils import Cluster
except ModuleNotFoundError:
    pytest.skip("Ray is not installed", allow_module_level=True)

pytestmark = pytest.mark.ranks
PROGRAM = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
x = torch.ones(1 << 20, device="cuda", dtype=torch.bfloat16)
for _ in range(3):
    dist.all_reduce(x)
    torch.cuda.synchronize()
gathered = [None] * dist.get_world_size()
dist.all_gather_object(gathered, os.getcwd())
if dist.get_rank() == 0:
    print("folders", *gathered, flush=True)
dist.destroy_process_group()
"""
STARTS = 3
NODE: dict[str, Any] = {"num_cpus": 1, "num_gpus": 0, "memory": 1 << 30, "object_store_memory": 80 << 20}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A node of Ray in this process takes SIGTERM: what is forked later would drain that node in place of ending."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        made = _started()
        signal.signal(signal.SIGTERM, handler)
        yield made
        made.shutdown()
    finally:
        signal.signal(signal.SIGTERM, handler)


def _started() -> Any:
    """Ray ends its own processes if they do not start within 15 s."""
    why: Exception | None = None
    for _ in range(STARTS):
        made: Any = Cluster()
        try:
            made.add_node(**NODE, include_dashboard=False)
            made.add_node(**NODE)
            return made
        except Exception as error:
            why = error
            made.shutdown()
    pytest.fail(f"Ray does not start here: {why}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("ray")
    (made / "scripts").mkdir()
    (made / "scripts" / "program.py").write_text(PROGRAM)
    (made / "scripts" / "shipped.py").write_text(f"import os\nassert 'working_dir_files' in os.getcwd()\n{PROGRAM}")
    (made / "scripts" / "endless.py").write_text(ENDLESS)
    return made / "scripts"


def phantora(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PHANTORA, *arguments],
        cwd=folder,
        env=runs.environment(shared=False),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


TRACE = ("trace", "--no-summary", "--no-recording", "--cluster", "2x1xH100")


def test_the_log_is_that_of_the_local_run(cluster: Any, folder: Path) -> None:
    done = phantora(folder, *TRACE, "--ray", cluster.address, "-o", "nodes.arrow", "program.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"ranks run on node \S+ \(ranks 0\), node \S+ \(ranks 1\)", done.stderr), done.stderr
    local = phantora(folder, *TRACE, "--no-daemon", "-o", "local.arrow", "program.py")
    assert local.returncode == 0, local.stderr
    assert difference(rows(folder / "nodes.arrow"), rows(folder / "local.arrow")) == ""


def test_compare_ships_the_folder(cluster: Any, folder: Path) -> None:
    ray = ("--ray", cluster.address, "--working-dir", "..")
    done = phantora(folder, "compare", "-q", *ray, "--gpus", "H100", "--count", "1", "shipped.py")
    assert done.returncode == 0 and "1x1xH100 is enough" in done.stdout, done.stdout + done.stderr


def test_a_killed_raylet(cluster: Any, folder: Path) -> None:
    command = [*PHANTORA, *TRACE, "--ray", cluster.address, "-o", "lost.arrow", "endless.py"]
    run = subprocess.Popen(
        command,
        cwd=folder,
        env=runs.environment(shared=False),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    ranks = {}
    for line in run.stdout:
        if found := re.search(r"process (\d) (\d+)", line):
            ranks[int(found[1])] = int(found[2])
        if len(ranks) == 2:
            break
    (worker,) = cluster.worker_nodes
    os.kill(worker.all_processes["raylet"][0].process.pid, signal.SIGKILL)
    try:
        _, err = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 1 and re.search(
        r"FAILED: node \S+ \(ranks [01]\): the connection to its agent has ended", err
    ), err
    assert "partial log lost.arrow" in err and "Traceback" not in err
    deadline = time.monotonic() + END_SECONDS  # Ray's worker notices by itself that its raylet has gone
    while left := [pid for pid in ranks.values() if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)

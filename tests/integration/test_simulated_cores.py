"""``os.cpu_count()`` of a rank."""

from __future__ import annotations

from pathlib import Path

from tests.support.runs import trace

SCRIPT = """
import multiprocessing, os, torch
torch.ones(1, device="cuda").add_(1)
print(os.cpu_count(), multiprocessing.cpu_count(), len(os.sched_getaffinity(0)))
"""


def test_a_script_sees_the_cpus_of_the_simulated_host(tmp_path: Path) -> None:
    (tmp_path / "cores.py").write_text(SCRIPT)
    assert trace(tmp_path, "--host", "xeon-8480", "cores.py").out == "28 28 28\n"

"""The ranks' nvidia-smi says of the simulated GPUs what torch says of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from phantora.launch.environment import PROGRAMS
from tests.support.runs import trace

PROGRAM = """
import json, os, subprocess, sys
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
x = torch.ones(1 << 28, device="cuda")
dist.init_process_group("nccl")
dist.barrier()
torch.cuda.synchronize()

def smi(*arguments):
    done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines(), done.stderr

if rank == 3:
    free, total = torch.cuda.mem_get_info()
    mine = torch.cuda.get_device_properties(1)
    said = {
        "torch": [mine.name, str(mine.uuid), (total - free) >> 20, total >> 20, os.getpid()],
        "list": smi("-L"),
        "gpus": smi("--query-gpu=index,gpu_name,uuid,memory.used,memory.total,compute_cap",
                    "--format=csv,noheader,nounits"),
        "head": smi("--query-gpu=gpu_name,memory.used,utilization.gpu", "--format=csv", "-i", "1"),
        "apps": smi("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"),
        "table": smi(),
        "topo": smi("topo", "-m"),
        "field": smi("--query-gpu=name,colour", "--format=csv"),
        "none": smi("-L", "-i", "2"),
    }
    print(json.dumps(said), flush=True)
dist.barrier()
"""


def test_it_agrees_with_torch(tmp_path: Path) -> None:
    """Rank 3 is on the second host: it has that host's second GPU."""
    (tmp_path / "program.py").write_text(PROGRAM)
    run = trace(tmp_path, "--cluster", "2x2xH100", "program.py")
    assert run.status == 0, run.err
    said = run.report()
    name, uuid, used, total, pid = said["torch"]
    status, lines, _ = said["gpus"]
    assert status == 0 and [line.split(", ")[0] for line in lines] == ["0", "1"]
    assert lines[1] == f"1, {name}, GPU-{uuid}, {used}, {total}, 9.0"
    assert int(lines[0].split(", ")[3]) > 1024  # the neighbour's tensor of 1 GiB
    assert said["list"][1][1] == f"GPU 1: {name} (UUID: GPU-{uuid})"
    assert said["head"][1] == ["name, memory.used [MiB], utilization.gpu [%]", f"{name}, {used} MiB, [N/A]"]
    assert said["apps"][1][1] == f"{pid}, {used}"
    table = "\n".join(said["table"][1])
    assert f"{used}MiB / {total:>6}MiB" in table and str(pid) in table
    assert len({len(line) for line in said["table"][1][1:8]}) == 1
    assert said["topo"][0] == 3 and "topo is not simulated" in said["topo"][2]
    assert said["field"][0] == 2 and "colour" in said["field"][2]
    assert said["none"][0] == 6


def test_without_a_simulation_it_says_so() -> None:
    done = subprocess.run([str(PROGRAMS / "nvidia-smi")], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.returncode == 9 and "PHANTORA" in done.stderr

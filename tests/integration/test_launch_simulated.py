"""Launching together with a simulation: virtual time in scripts, errors of the simulation, the log."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from phantora.run_process import PHANTORA
from phantora.trace.reader import open_log
from tests.support import runs

ROOT = Path(__file__).resolve().parents[2]
SETUP = """
import os, signal, sys, threading, time
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
x = torch.ones(1 << 20, device="cuda")
"""


def run(
    directory: Path, *arguments: str, before: Callable[[], None] | None = None, packages: str = "", shared: bool = False
) -> subprocess.CompletedProcess[str]:
    """`shared`: the fork server of all tests is taken. Nothing is simulated again from a recording."""
    words = ("trace", "--no-recording", *arguments)
    if shared:
        return runs.phantora(*words, cwd=directory, timeout=120)
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), packages)))}
    return subprocess.run(
        [*PHANTORA, *words], cwd=directory, env=own, capture_output=True, text=True, timeout=120, preexec_fn=before
    )


def trace(
    directory: Path, script: str, *options: str, before: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    (directory / "train.py").write_text(script)
    return run(directory, *options, "train.py", before=before, shared=before is None)


def test_scripts_see_virtual_time(tmp_path: Path) -> None:
    script = (
        SETUP
        + """
begin, wall, real = time.perf_counter(), time.time(), time.process_time()
time.sleep(100)
first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
x.add_(1)  # the first launch of a kernel loads it
first.record()
for _ in range(50): x.add_(1)
second.record()
torch.cuda.synchronize()
dist.barrier()
print(time.perf_counter() - begin, time.time() - wall, first.elapsed_time(second))
"""
    )
    begin = time.monotonic()
    done = trace(tmp_path, script, "--cluster", "2", "--json", "-q")
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - begin < 60
    lines = re.findall(r"^\[rank\d\]: [\d.]+ [\d.]+ [\d.]+$", done.stderr, re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        monotonic, wall, kernels = (float(word) for word in line.partition(": ")[2].split())
        # 50 additions on 4 MiB take at least their launches and at most a few microseconds each.
        assert 100 < monotonic < 101 and 100 < wall < 101 and 0.05 < kernels < 5
    summary = json.loads(done.stdout)
    assert 100 < summary["simulated_seconds"] < 102 and summary["rows"] >= 100
    assert open_log(tmp_path / "train.arrow").metadata.world_size == 2


def test_modules_imported_for_all_ranks(tmp_path: Path) -> None:
    """They see the script's arguments. If they initialise CUDA (`lightning` stands for any), the ranks import them."""
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "early.py").write_text("import os, sys\nIMPORTED_BY = os.getpid()\nARGUMENTS = sys.argv[1:]\n")
    (packages / "lightning.py").write_text("import os, torch\ntorch.cuda.get_arch_list()\nIMPORTED_BY = os.getpid()\n")
    (tmp_path / "train.py").write_text(
        "import lightning\nimport early, os, torch\n"
        "print(early.IMPORTED_BY == os.getpid(), early.ARGUMENTS, lightning.IMPORTED_BY == os.getpid())\n"
        "print(torch.ones(2, device='cuda').sum().item())\n"
    )
    options = ("--cluster", "1", "--no-summary", "--preload", "early")
    done = run(tmp_path, *options, "train.py", "--lr", "3", packages=str(packages))
    assert done.returncode == 0 and "False ['--lr', '3'] True" in done.stdout, done.stdout + done.stderr
    assert "2.0" in done.stdout
    done = run(tmp_path, *options, "--preload", "lightning", "train.py", packages=str(packages))
    assert done.returncode != 0 and "leave out --preload lightning" in done.stderr


KEEPS = """
import ctypes, threading, torch
x = torch.ones(4096, 4096, device="cuda")
torch.cuda.synchronize()
cuda = ctypes.PyDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}")  # calls keep the interpreter to themselves

def work():
    for _ in range(20):
        x @ x
        assert cuda.cudaDeviceSynchronize() == 0
    done.append(1)

done = []
threading.Thread(target=work).start()
while not done:
    pass
print("both went on", flush=True)
"""


def test_a_thread_may_wait_and_keep_the_interpreter(tmp_path: Path) -> None:
    """As DTensor's operators do. The main thread asks for the interpreter meanwhile, 200 times a second."""
    (tmp_path / "keeps.py").write_text(KEEPS)
    assert "both went on" in runs.trace(tmp_path, "--cluster", "1x1xH100", "keeps.py").out


def test_hang_is_told_and_ends_the_run(tmp_path: Path) -> None:
    script = (
        SETUP
        + """
if rank == 0:
    dist.all_reduce(x)
    torch.cuda.synchronize()
threading.Event().wait(100)
"""
    )
    done = trace(tmp_path, script, "--cluster", "2", "--hang-timeout", "2")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "phantora: deadlock: every member" in done.stderr and "rank 0" in done.stderr
    assert open_log(tmp_path / "train.arrow").complete


def test_part_of_each_host(tmp_path: Path) -> None:
    """Two of four GPUs of each host: rank % device_count, which DTensor draws random numbers on, is the rank's own."""
    script = (
        SETUP
        + """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, randn
mesh = init_device_mesh("cuda", (4,))
value = randn(64, device_mesh=mesh, placements=[Shard(0)])
assert value.to_local().device.index == int(os.environ["LOCAL_RANK"])
dist.all_reduce(x)
torch.cuda.synchronize()
os.write(1, f"{rank} {torch.cuda.device_count()}\\n".encode())  # whole: not mixed
"""
    )
    done = trace(tmp_path, script, "--cluster", "2x4xH100", "--nproc-per-node", "2", "--hang-timeout", "5")
    assert done.returncode == 0, done.stderr
    assert sorted(line.split(": ")[-1] for line in done.stdout.splitlines()) == [f"{rank} 2" for rank in range(4)]


def test_death_in_a_collective_is_the_reason_given(tmp_path: Path) -> None:
    script = (
        SETUP
        + """
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(x)
torch.cuda.synchronize()
"""
    )
    done = trace(tmp_path, script, "--cluster", "2")
    assert done.returncode == 137
    assert "FAILED: rank 1 (host 0, GPU 1) was killed by SIGKILL" in done.stderr


def test_interrupted_run_leaves_a_readable_log(tmp_path: Path) -> None:
    body = "while True:\n  for _ in range(500): x.add_(1)\n  dist.all_reduce(x); torch.cuda.synchronize()\n"
    (tmp_path / "train.py").write_text(SETUP + body)
    process = subprocess.Popen(
        [*PHANTORA, "trace", "--cluster", "2", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    log = tmp_path / "train.arrow"
    deadline = time.monotonic() + 100
    while not (log.exists() and log.stat().st_size > 100_000):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and "interrupted by SIGINT" in err and "Traceback" not in err
    assert open_log(log).complete


def test_full_disk_is_told(tmp_path: Path) -> None:
    limit = 6 << 20  # bytes per file; the ranks' shared memory counts as a file, too

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    script = "import torch\nx = torch.ones(4, device='cuda')\nfor i in range(400):\n"
    script += "  print('x' * 20000)\n  x.add_(i)\n"
    done = trace(tmp_path, script, "--log-dir", "logs", "--rdzv-id", "a", before=full)
    assert done.returncode == 0
    assert "cannot write logs/a/attempt_0/0/stdout.log: File too large" in done.stderr
    written = (tmp_path / "logs/a/attempt_0/0/stdout.log").stat().st_size
    assert written == limit and len(done.stdout) == 400 * 20001


def test_launcher_with_cuda(tmp_path: Path) -> None:
    """A launcher that shows every rank its own GPU only, as many schedulers do."""
    own = "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = os.environ['LOCAL_RANK']\n"
    script = own + SETUP.replace('int(os.environ["LOCAL_RANK"])', "0")
    script += "assert torch.cuda.device_count() == 1\ndist.all_reduce(x); torch.cuda.synchronize()\nprint(x.shape)\n"
    (tmp_path / "train.py").write_text(script)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*PHANTORA, "trace", "--no-recording", "--cluster", "2", "--", *launcher, "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("torch.Size([1048576])") == 2
    log = open_log(tmp_path / "train.arrow")
    assert log.complete and log.metadata.command[-1] == "train.py"
    memory = [set(batch["rank"].tolist()) for batch in log.batches(("rank",), kinds=("memory",))]
    assert set().union(*memory) == {0, 1}, "also of ranks that see fewer GPUs than their host has"

"""Every way in which people start their ranks: spawned, forked, by a launcher, as subprocesses, with own stores."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from phantora.launch.selfstart import starts_its_ranks
from phantora.run_process import PHANTORA
from phantora.trace.reader import open_log
from tests.support import runs

ROOT = Path(__file__).parents[2]

WORKER = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("nccl", rank=rank, world_size=world)
    torch.cuda.set_device(rank)
    x = torch.full((4,), rank + 1.0, device="cuda")
    dist.all_reduce(x)
    print(f"<{rank} {x.tolist()[0]}>", flush=True)
    if FAILS == rank:
        raise ValueError("on purpose")
    dist.destroy_process_group()
FAILS = -1
if __name__ == "__main__":
"""
SPAWN = (
    WORKER
    + """
    mp.spawn(work, args=(torch.cuda.device_count(), int(sys.argv[1])), nprocs=torch.cuda.device_count())
"""
)
FORKED = (
    WORKER
    + """
    for count, port in zip((int(word) for word in sys.argv[1].split(",")), sys.argv[2:]):
        mp.start_processes(work, args=(count, port), nprocs=count, start_method="fork")  # which imports torch once
"""
)
PROCESSES = (
    WORKER
    + """
    port = int(sys.argv[1])
    mp.set_start_method(sys.argv[2])
    all = [mp.Process(target=work, args=(r, 2, port)) for r in range(2)]
    [p.start() for p in all]; [p.join() for p in all]
    sys.exit(max(p.exitcode for p in all))
"""
)
STORE = """
import os, sys, torch, torch.distributed as dist
r, w = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("nccl", init_method=sys.argv[1], rank=r, world_size=w)
torch.cuda.set_device(r); x = torch.ones(2, device="cuda"); dist.all_reduce(x); print(f"<{r} {x.tolist()[0]}>")
"""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def trace(
    directory: Path, *arguments: str, shared: bool = False, recording: bool = False
) -> subprocess.CompletedProcess[str]:
    """`shared`: a run whose ranks Phantora forks takes the fork server of all tests. A run with a `recording` is
    simulated four times more, as in tests/support/runs.py."""
    words = ("--no-summary", *(() if recording else ("--no-recording",)), *arguments)
    if shared:
        return runs.phantora("trace", *words, cwd=directory, timeout=300)
    own = {"PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    return subprocess.run(
        [*PHANTORA, "trace", *words],
        cwd=directory,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def values(text: str) -> set[tuple[int, float]]:
    return {(int(r), float(v)) for r, v in re.findall(r"<(\d+) ([\d.]+)>", text)}


def kernels_of(log: Path) -> dict[int, int]:
    """Rows of collectives by rank."""
    found = [
        row["rank"]
        for batch in open_log(log).record_batches(["kind", "rank"])
        for row in batch.to_pylist()
        if row["kind"] == "collective"
    ]
    return {rank: found.count(rank) for rank in set(found)}


@pytest.mark.parametrize("form", ["script", "command"])
def test_spawned_ranks(tmp_path: Path, form: str) -> None:
    (tmp_path / "spawn.py").write_text(SPAWN)
    target = ["spawn.py"] if form == "script" else ["--", sys.executable, "spawn.py"]
    done = trace(tmp_path, "--cluster", "1x2xH100", "-o", "run.arrow", *target, str(free_port()))
    assert done.returncode == 0, done.stderr
    assert values(done.stdout) == {(0, 3.0), (1, 3.0)}
    assert ("starts its ranks itself" in done.stderr) == (form == "script")
    assert kernels_of(tmp_path / "run.arrow") == {0: 1, 1: 1}


@pytest.mark.parametrize("gpus", [1, 2])
def test_ranks_spawned_by_a_script_for_torchrun_too(tmp_path: Path, gpus: int) -> None:
    """Its text does not show who starts the ranks: the first ones that spawn end the run, which begins again."""
    text = SPAWN.replace("import", "import os\nos.environ.get('RANK')\nimport", 1)
    (tmp_path / "spawn.py").write_text(text)
    done = trace(tmp_path, "--cluster", f"1x{gpus}xH100", "-o", "run.arrow", "spawn.py", str(free_port()))
    assert done.returncode == 0, done.stderr
    assert values(done.stdout) == {(rank, gpus * (gpus + 1) / 2) for rank in range(gpus)}
    line = text.splitlines().index(next(one for one in text.splitlines() if "mp.spawn(" in one)) + 1
    assert f"spawn.py:{line} starts the ranks itself, so the run begins again as `-- python spawn.py`" in done.stderr


def test_the_sample(tmp_path: Path) -> None:
    """samples/spawn_ddp.py, as its first lines say."""
    sizes = ("--width", "512", "--layers", "1", "--batch", "256", "--steps", "3", "--port", str(free_port()))
    done = trace(tmp_path, "--cluster", "1x2xH100", "-o", "run.arrow", str(runs.SAMPLES / "spawn_ddp.py"), *sizes)
    assert done.returncode == 0, done.stderr
    assert re.search(r"2 GPUs, median step \d+\.\d\d ms", done.stdout)
    assert set(kernels_of(tmp_path / "run.arrow")) == {0, 1}


def test_gpus_serve_one_process_after_the_other(tmp_path: Path) -> None:
    """Workers are started twice; the second ones begin when the first are done, and the log can be replayed."""
    (tmp_path / "twice.py").write_text(FORKED)
    ports = str(free_port()), str(free_port())
    done = trace(tmp_path, "--cluster", "1x3xH100", "-o", "run.arrow", "twice.py", "3,2", *ports, recording=True)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"<\d 3.0>", done.stdout)) == 2 and len(re.findall(r"<\d 6.0>", done.stdout)) == 3
    assert kernels_of(tmp_path / "run.arrow") == {0: 2, 1: 2, 2: 1}
    columns = ["kind", "rank", "start", "end", "id", "comm"]
    rows = [row for batch in open_log(tmp_path / "run.arrow").record_batches(columns) for row in batch.to_pylist()]
    sums = sorted((row["start"], row["end"]) for row in rows if row["kind"] == "collective" and row["rank"] == 0)
    assert sums[0][1] < sums[1][0]
    assert len({row["comm"] for row in rows if row["kind"] == "communicator"}) == 2
    mine = [row["id"] for row in rows if row["rank"] == 0 and row["id"] > 0 and row["kind"] != "flow"]
    assert len(mine) == len(set(mine))
    again = subprocess.run(
        [*PHANTORA, "replay", "run.arrow", "-o", "again.arrow", "--no-summary"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 0, again.stderr
    assert kernels_of(tmp_path / "again.arrow") == {0: 2, 1: 2, 2: 1}


ABORTS = """
import datetime, os, time, threading, torch, torch.distributed as dist
r = int(os.environ["RANK"]); torch.cuda.set_device(r)
dist.init_process_group("nccl", device_id=torch.device("cuda", r))
x = torch.ones(4, device="cuda"); dist.all_reduce(x); torch.cuda.synchronize()
if r == 0:
    dist.all_reduce(x)  # nobody joins it
    group = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cuda"))
    threading.Timer(0.5, group.abort).start()
    torch.cuda.synchronize()
    y = torch.full((4,), 2.0, device="cuda") + 1
    print("free", y.sum().item())
"""


def test_an_aborted_communicator_frees_its_rank(tmp_path: Path) -> None:
    (tmp_path / "aborts.py").write_text(ABORTS)
    done = trace(tmp_path, "--cluster", "1x2xH100", "aborts.py", shared=True)
    assert done.returncode == 0, done.stderr
    assert "free 12.0" in done.stdout


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_processes_on_some_of_the_gpus(tmp_path: Path, method: str) -> None:
    """Two of four GPUs are used; the other two hold nobody up."""
    (tmp_path / "processes.py").write_text(PROCESSES)
    done = trace(tmp_path, "--cluster", "1x4xH100", "processes.py", str(free_port()), method)
    assert done.returncode == 0, done.stderr
    assert values(done.stdout) == {(0, 3.0), (1, 3.0)}


def test_a_failing_process_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(FORKED.replace("FAILS = -1", "FAILS = 1"))
    done = trace(tmp_path, "--cluster", "1x2xH100", "fails.py", "2", str(free_port()))
    assert done.returncode == 1
    assert "on purpose" in done.stderr


@pytest.mark.parametrize("place", ["tcp", "file"])
def test_a_store_of_the_script(tmp_path: Path, place: str) -> None:
    (tmp_path / "store.py").write_text(STORE)
    method = f"tcp://127.0.0.1:{free_port()}" if place == "tcp" else f"file://{tmp_path}/store"
    done = trace(tmp_path, "--cluster", "1x2xH100", "store.py", method, shared=True)
    assert done.returncode == 0, done.stderr
    assert values(done.stdout) == {(0, 2.0), (1, 2.0)}


def test_a_single_process_uses_one_gpu_of_many(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        "import torch; x = torch.ones(1024, 1024, device='cuda:1'); y = x @ x; torch.cuda.synchronize(); print('done')"
    )
    done = trace(tmp_path, "--cluster", "1x4xL40S", "--", sys.executable, "one.py")
    assert done.returncode == 0, done.stderr
    assert "done" in done.stdout


def test_a_gpu_is_used_by_a_child_of_a_script_that_uses_none(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(
        "import subprocess, sys, torch\n"
        "use = 'import torch; print(torch.ones(3, device=\"cuda\").sum().item())'\n"
        "print(subprocess.run([sys.executable, '-c', use], capture_output=True, text=True).stdout)\n"
    )
    done = trace(tmp_path, "--cluster", "1x1xH100", "parent.py")
    assert done.returncode == 0, done.stderr
    assert "3.0" in done.stdout and "starts its ranks itself (line 3)" in done.stderr


def test_a_child_of_a_rank_sees_gpus_and_is_told_that_they_are_taken(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(
        "import subprocess, sys, torch, torch.distributed\n"  # it may be a rank
        "torch.ones(1, device='cuda')\n"
        "see = 'import torch; print(torch.cuda.device_count(), torch.cuda.get_device_name(0), flush=True)'\n"
        "use = see + '; torch.empty(1, device=\"cuda\")'\n"
        "done = subprocess.run([sys.executable, '-c', use], capture_output=True, text=True)\n"
        "print(done.stdout, done.stderr)\n"
    )
    done = trace(tmp_path, "--cluster", "1x1xA100-80GB", "parent.py")
    assert done.returncode == 0, done.stderr
    assert "1 NVIDIA A100" in done.stdout
    assert "every GPU of the run belongs to a rank" in done.stdout


@pytest.mark.parametrize(("processes", "options"), [(1, ()), (2, ("--multi_gpu",))])
def test_accelerate_launch(tmp_path: Path, processes: int, options: tuple[str, ...]) -> None:
    pytest.importorskip("accelerate")
    (tmp_path / "one.py").write_text(
        "from accelerate import Accelerator\nimport torch\na = Accelerator()\n"
        "m = a.prepare(torch.nn.Linear(8, 8)); m(torch.ones(2, 8, device=a.device)).sum().backward()\n"
        "print(f'device {a.device} of {a.num_processes}\\n', end='')\n"  # one write: two ranks share the stream
    )
    command = [
        "-m",
        "accelerate.commands.launch",
        *options,
        "--num_processes",
        str(processes),
        "--num_machines",
        "1",
        "--mixed_precision",
        "no",
        "--dynamo_backend",
        "no",
        "one.py",
    ]
    done = trace(tmp_path, "--cluster", f"1x{processes}xH100", "--", sys.executable, *command)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(rf"device cuda(:\d)? of {processes}", done.stdout)) == processes


def test_a_worker_that_is_killed_leaves_its_memory(tmp_path: Path) -> None:
    """As Ray ends its actors. The first use of the GPU, which makes the process a rank, is the only allocation."""
    (tmp_path / "driver.py").write_text(
        "import subprocess, sys\n"
        "use = 'import os, torch; x = torch.zeros(64 << 20, device=\"cuda\"); x.add_(1); torch.cuda.synchronize()'\n"
        "subprocess.run([sys.executable, '-c', use + '; os.kill(os.getpid(), 9)'])\n"
    )
    done = trace(
        tmp_path, "--cluster", "1x1xH100", "-o", "run.arrow", "--", sys.executable, "driver.py", recording=True
    )
    assert done.returncode == 0, done.stderr
    log = open_log(tmp_path / "run.arrow")
    assert log.trailer["device_memory_bytes"] > 256 << 20
    assert log.trailer["host_sensitivity"]["steps_ns"], "its recording is simulated on other hosts"
    rows = [row for batch in log.record_batches(["kind", "value"]) for row in batch.to_pylist()]
    assert {row["value"] for row in rows if row["kind"] == "memory"} == {256 << 20}


def test_a_command_that_uses_no_gpu_is_told(tmp_path: Path) -> None:
    done = trace(tmp_path, "--cluster", "1x1xH100", "--", sys.executable, "-c", "print(1)")
    assert done.returncode == 1
    assert "used a GPU of the simulation" in done.stderr


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import torch.multiprocessing as mp\nmp.spawn(f)", 2),
        ("from torch.multiprocessing import spawn as s\n\ns(f)", 3),
        ("import torch\ntorch.multiprocessing.start_processes(f)", 2),
        ("import torch.multiprocessing as mp\nmp.Process(target=f)\ndist.init_process_group('nccl', rank=0)", 2),
        ("from accelerate import notebook_launcher\nnotebook_launcher(f, num_processes=2)", 2),
        ("import multiprocessing as mp\nmp.Process(target=f)", None),  # something else than a rank
        ("import torch.multiprocessing as mp\nimport os\nif 'LOCAL_RANK' in os.environ: f()\nelse: mp.spawn(f)", None),
        ("import subprocess, sys, torch\nsubprocess.run([sys.executable, 'one.py'])", 2),
        ("from subprocess import Popen\nfrom sys import executable as e\nPopen([e, 'one.py'])", 3),
        ("import subprocess\nsubprocess.run(['git', 'status'])", None),
        ("import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'pip', 'install', 'x'])", None),
        ("import subprocess, sys, transformers\nsubprocess.run([sys.executable, 'one.py'])", None),  # a rank, by others
        ("import subprocess, sys, torch\ntorch.distributed.barrier()\nsubprocess.run([sys.executable])", None),
        ("def broken(", None),
    ],
)
def test_which_scripts_start_their_ranks(tmp_path: Path, text: str, line: int | None) -> None:
    (tmp_path / "s.py").write_text(text)
    assert starts_its_ranks(str(tmp_path / "s.py")) == line


def test_what_follows_the_end_of_a_process_is_not_recorded(tmp_path: Path) -> None:
    """While it is torn down, its threads still call CUDA: it took its place once more, without its communicators."""
    (tmp_path / "ending.py").write_text(
        "import ctypes, torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl', store=dist.HashStore(), rank=0, world_size=1)\n"
        "x = torch.ones(4, device='cuda')\n"
        "dist.all_reduce(x)\n"
        "torch.cuda.synchronize()\n"
        "ctypes.CDLL(None).ph_exit(0)\n"
        "x.add_(1)\n"
        "torch.cuda.synchronize()\n"
        "dist.destroy_process_group()\n"
        "print('ended', flush=True)\n"
    )
    done = trace(tmp_path, "--cluster", "1x1xH100", "--", sys.executable, "ending.py")
    assert done.returncode == 0 and "ended" in done.stdout, done.stderr


NAMED = """
import os, subprocess, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp

def work(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29511")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    x = torch.ones(8, device="cuda")
    dist.all_reduce(x)
    subprocess.run([sys.executable, "-c", "import os; os.write(1, b'a helper\\\\n')"], check=True)
    dist.all_reduce(x)
    os.write(1, f"sum {x[0].item()}\\n".encode())  # two ranks share the stream
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""


def test_what_a_process_starts_that_has_become_a_rank_and_set_its_variables(tmp_path: Path) -> None:
    """As DeepSpeed's tests: RANK is set in a spawned process, which then starts Python (py-cpuinfo)."""
    (tmp_path / "program.py").write_text(NAMED)
    done = trace(tmp_path, "--cluster", "1x2xH100", "--", sys.executable, "program.py")
    assert done.stdout.count("a helper") == 2 and done.stdout.count("sum 4.0") == 2, done.stderr


ONE_PROCESS = """
import torch, torch.nn as nn
first, second = nn.Linear(64, 64).to("cuda:0"), nn.Linear(64, 64).to("cuda:1")
second(first(torch.ones(8, 64, device="cuda:0")).to("cuda:1")).sum().backward()
torch.cuda.synchronize(1)
print("two GPUs", flush=True)
nn.DataParallel(nn.Linear(64, 64).cuda())(torch.ones(8, 64, device="cuda"))
"""


def test_nccl_between_gpus_of_one_process_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(ONE_PROCESS)
    done = trace(tmp_path, "--cluster", "1x2xH100", "--", sys.executable, "program.py")
    assert done.returncode and done.stdout == "two GPUs\n"
    assert "rank 0 is two members of one communicator: NCCL between GPUs of one process" in done.stderr
    assert "as DistributedDataParallel does" in done.stderr


CALLS = """
import os, torch, torch.distributed.rpc as rpc
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)

def added(tensor, number):
    assert tensor.device == torch.device("cuda:1") and tensor.tolist() == [1.0, 2.0], tensor
    return tensor + number

options = rpc.TensorPipeRpcBackendOptions(rpc_timeout=10_000)
options.set_device_map(f"worker{1 - rank}", {rank: 1 - rank})
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
if rank == 0:
    sum = rpc.rpc_sync("worker1", added, args=(torch.tensor([1.0, 2.0], device="cuda"), 3))
    print(sum.device, sum.tolist(), flush=True)
rpc.shutdown()
"""


def test_rpc_between_gpus_brings_the_numbers(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(CALLS)
    done = trace(tmp_path, "--cluster", "1x2xH100", "program.py", shared=True)
    assert done.returncode == 0 and "cuda:0 [4.0, 5.0]" in done.stdout, done.stderr


OBJECTS = """
import pickle, torch, torch.distributed as dist
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)

def made(rank, size):
    return bytes((rank * 7 + i) % 251 for i in range(997)) * (size // 997)

def all_gathered():
    gathered = [None] * 2
    dist.all_gather_object(gathered, made(rank, (rank + 1) * 3_000_000))
    return gathered == [made(r, (r + 1) * 3_000_000) for r in range(2)]

def a_small_one_among_large():
    gathered = [None] * 2
    dist.all_gather_object(gathered, {"rank": rank, "bytes": made(rank, 20_000_000 if rank else 0)})
    return gathered == [{"rank": r, "bytes": made(r, 20_000_000 if r else 0)} for r in range(2)]

def broadcast():
    objects = [made(1, 5_000_000), "text", list(range(500_000))]
    got = objects if rank == 0 else [None] * 3
    dist.broadcast_object_list(got)
    return got == objects

def gathered():
    got = None if rank else [None] * 2
    dist.gather_object(made(rank, 4_000_000 + 10_000 * rank), got)
    return rank == 1 or got == [made(r, 4_000_000 + 10_000 * r) for r in range(2)]

def scattered():
    got = [None]
    dist.scatter_object_list(got, None if rank else [made(r, 6_000_000 - 10_000 * r) for r in range(2)])
    return got == [made(rank, 6_000_000 - 10_000 * rank)]

def sent():
    objects = [made(3, 7_000_000), 5]
    got = [None] * 2 if rank else objects
    dist.recv_object_list(got, 0) if rank else dist.send_object_list(got, 1)
    return got == objects

def by_hand():  # as evaluators do, who fill up the shorter ones
    row = torch.frombuffer(bytearray(pickle.dumps(made(rank, 2_000_000 + 100_000 * rank))), dtype=torch.uint8).cuda()
    sizes = [torch.zeros(1, dtype=torch.int64, device="cuda") for _ in range(2)]
    dist.all_gather(sizes, torch.tensor([len(row)], device="cuda"))
    most = max(int(size) for size in sizes)
    row = torch.cat((row, torch.empty(most - len(row), dtype=torch.uint8, device="cuda")))
    rows = [torch.empty(most, dtype=torch.uint8, device="cuda") for _ in range(2)]
    dist.all_gather(rows, row)
    got = [pickle.loads(row[:size].cpu().numpy().tobytes()) for row, size in zip(rows, sizes)]
    return got == [made(r, 2_000_000 + 100_000 * r) for r in range(2)]

def trained():
    return torch.empty(3 << 20, device="cuda").normal_()

def unknown():  # large bytes that nobody knows, and a maximum of some that one rank knows
    weights = trained().to(torch.int8)
    dist.broadcast(weights, 0)
    known = torch.full((3 << 20,), 3, dtype=torch.uint8).cuda()
    if rank:
        known = trained().to(torch.uint8)
    dist.all_reduce(known, op=dist.ReduceOp.MAX)
    return not weights.any() and known.cpu().unique().tolist() == [3]

def integers():
    mine = (torch.arange(300_000) % 7).cuda() + rank
    gathered, received, summed = [torch.empty_like(mine) for _ in range(2)], torch.empty_like(mine), mine.clone()
    dist.all_gather(gathered, mine)
    dist.all_to_all_single(received, mine)
    dist.all_reduce(summed)
    sums = [int(t.sum()) for t in (*gathered, received, summed)]
    return sums == [899_997, 1_199_997, (1_049_988, 1_050_006)[rank], 2_099_994]

for way in (integers, all_gathered, a_small_one_among_large, broadcast, gathered, scattered, sent, by_hand, unknown):
    assert way(), way.__name__
print("all true", flush=True)
dist.broadcast_object_list([bytes([1]) * (65 << 20) if rank == 0 else None])
"""


def test_large_objects_travel_and_one_too_large_for_nccl_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(OBJECTS)
    done = trace(tmp_path, "--cluster", "1x2xH100", "program.py", shared=True)
    assert done.returncode == 1 and done.stdout.count("all true") == 2, done.stderr
    assert "rank 1: a pickled object came as zeros: NCCL carries 64 MiB" in done.stderr
    assert "new_group(backend='gloo')" in done.stderr and "Traceback" not in done.stderr


STEPS = """
import os, torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
weight = torch.zeros(1024, 1024, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.1)
for _ in range(4):
    (weight @ weight).sum().backward()
    dist.all_reduce(weight.grad)
    optimizer.step()
    torch.cuda.synchronize()
dist.destroy_process_group()
"""
FORKED_RUN = """
import sys
import phantora.runs.preload, phantora.sweeps.result
before = set(sys.modules)
from phantora.runs.__main__ import main
from phantora.spec import OutputSpec, RunSpec
spec = RunSpec("train.py", cluster="1x2xH100", output=OutputSpec("run.arrow"))
open("spec.json", "w").write(spec.to_json())
assert main("spec.json", "result.json") == 0
import phantora.sweeps.measure
phantora.sweeps.measure.measure("run.arrow")
print("late", *sorted(name for name in set(sys.modules) - before if name.startswith("phantora.")))
"""


def test_the_process_that_forks_runs_has_imported_their_modules(tmp_path: Path) -> None:
    """All but those with which such a process begins."""
    (tmp_path / "train.py").write_text(STEPS)
    done = subprocess.run(
        [sys.executable, "-c", FORKED_RUN],
        cwd=tmp_path,
        env=runs.environment(shared=True) | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    begin = ["phantora.runs.__main__", "phantora.sweeps.measure", "phantora.without_pandas"]
    assert done.stdout.splitlines()[-1].split() == ["late", *begin]

"""The main job: samples on clusters, what their numbers respond to, equal logs, exports, memory, errors."""

from __future__ import annotations

import math
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantora.hardware import load_host
from phantora.trace.analysis.analyze import analyze
from phantora.trace.export import export
from phantora.trace.reader import open_log
from tests.support import trace_processor
from tests.support.agreement import holistic, paths_fill_steps, same_as_hta, same_in_sql
from tests.support.runs import SAMPLES, Run, command, phantora, records, rows, trace

TINY = ["--dim", "256", "--layers", "2", "--heads", "16", "--kv-heads", "16", "--ffn", "512", "--vocab", "1000"]
TINY += ["--seq", "128", "--steps", "2", "--warmup", "1"]
LLAMAS = {
    "llama_fsdp2.py": [],
    "llama_ddp.py": [],
    "llama_tp.py": ["--sp"],
    "llama_pp.py": ["--layers", "STAGES", "--batch", "STAGES", "--microbatches", "STAGES"],  # a layer for each rank
}


def sample(directory: Path, cluster: str, script: str, *arguments: str) -> Run:
    return trace(directory, "--cluster", cluster, str(SAMPLES / script), *arguments)


def finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value > 0


# On one GPU and on two hosts; sixteen ranks once, since each costs a second.
@pytest.mark.parametrize(
    ("script", "cluster"),
    [(script, cluster) for script in LLAMAS for cluster in ("1x1xH100", "2x2xH100")] + [("llama_fsdp2.py", "2x8xH100")],
)
def test_llama_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, cluster: str) -> None:
    stages = str(max(4, math.prod(int(n) for n in cluster.split("x")[:2])))
    run = sample(tmp_path, cluster, script, *TINY, *(word.replace("STAGES", stages) for word in LLAMAS[script]))
    report = run.report()
    assert report["world_size"] == math.prod(int(n) for n in cluster.split("x")[:2])
    assert all(finite(report[key]) for key in ("median_step_s", "tokens_per_s", "mfu", "max_memory_allocated"))
    losses = re.findall(r"loss (\S+)", run.out)
    assert len(losses) == 3 and all(math.isfinite(float(loss)) for loss in losses)
    log = open_log(run.log)
    assert log.complete
    assert set(rows(run.log, "rank")["rank"]) == set(range(report["world_size"]))
    if cluster == "2x2xH100":
        others_agree(run, tmp_path, monkeypatch)


def others_agree(run: Run, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTA on the first and the last rank, which costs half; the rest on all."""
    same_as_hta(run.log, holistic(run.log, directory / "chrome", monkeypatch, ranks=frozenset((0, 3))))
    report = analyze(open_log(run.log))
    same_in_sql(run.log, directory, report)
    paths_fill_steps(report)


@pytest.mark.parametrize("cluster", ["1x1xH100", "2x2xH100"])
def test_resnet_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: str) -> None:
    run = sample(tmp_path, cluster, "resnet_ddp.py", "--batch", "4", "--steps", "2", "--warmup", "1")
    assert finite(run.report()["images_per_s"])
    if cluster == "2x2xH100":
        others_agree(run, tmp_path, monkeypatch)


@pytest.mark.parametrize("flags", [[], ["--amp"]])
def test_single_gpu_sample(tmp_path: Path, flags: list[str]) -> None:
    run = sample(tmp_path, "1x1xH100", "llama_single.py", *TINY, *flags)
    assert finite(run.report()["tokens_per_s"])


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """FSDP2 on 2 ranks, with layers large enough that the GPU sets the pace."""
    return sample(tmp_path_factory.mktemp("reference"), "1x2xH100", "llama_fsdp2.py", *FSDP)


FSDP = ["--layers", "2", "--seq", "2048", "--steps", "2", "--warmup", "1"]


def test_a_shared_fork_server_gives_the_same_log(tmp_path: Path, reference: Run) -> None:
    own = trace(tmp_path, "--cluster", "1x2xH100", str(SAMPLES / "llama_fsdp2.py"), *FSDP, alone=True)
    shared, alone = (pa.ipc.open_file(run.log).read_all() for run in (reference, own))
    assert shared.equals(alone) and len(shared) > 1000


def test_numbers_respond(tmp_path: Path, reference: Run) -> None:
    """To the GPU, the cluster, the batch and the host-cost mode."""
    base = reference.report()["median_step_s"]

    def step(cluster: str, *options: str, extra: tuple[str, ...] = ()) -> float:
        run = trace(tmp_path, "--cluster", cluster, *options, str(SAMPLES / "llama_fsdp2.py"), *FSDP, *extra)
        return float(run.report()["median_step_s"])

    assert step("1x2xA100-80GB") > 1.5 * base
    assert step("1x2xH100", extra=("--batch", "2")) > 1.3 * base
    assert step("2x1xH100") > base  # two hosts: the network between them
    assert step("1x2xH100", "--host-time", "none") <= base
    assert step("1x2xH100", "--host-time", "measured") > 0.9 * base


RECURRENT = """
import time, torch
for hidden in (64, 512):
    cell = torch.nn.LSTM(hidden, hidden, 2, device="cuda")
    x = torch.zeros(100, 8, hidden, device="cuda")
    cell(x)
    torch.cuda.synchronize()
    began = time.perf_counter()
    cell(x)
    print(f"host {(time.perf_counter() - began) * 1e6:.0f} us")
"""


def test_the_host_launches_every_step_of_a_recurrent_layer(tmp_path: Path) -> None:
    """Three kernels for each of 100 steps of 2 layers, but for one kernel where the weights stay on chip."""
    (tmp_path / "recurrent.py").write_text(RECURRENT)
    run = trace(tmp_path, "--cluster", "1x1xH100", str(tmp_path / "recurrent.py"))
    few, many = (int(us) for us in re.findall(r"host (\d+) us", run.out))
    launch = load_host("default").api_ns["LAUNCH"] / 1e3
    assert many - few == pytest.approx(100 * 2 * 3 * launch, rel=0.02)


TRIED = """
import torch
torch.backends.cudnn.benchmark = True
x = torch.ones(32, 64, 56, 56, device="cuda")
layer = torch.nn.Conv2d(64, 64, 3, padding=1, bias=False).cuda()
for _ in range(3):
    layer(x).sum().backward()
torch.cuda.synchronize()
"""


def test_cudnn_benchmark_keeps_the_fastest_plan(tmp_path: Path) -> None:
    """With tensor cores: each trial takes the time of its plan."""
    (tmp_path / "tried.py").write_text(TRIED)
    run = trace(tmp_path, "--cluster", "1x1xH100", "tried.py")
    found = rows(run.log, "name", "start", "end", kinds=("kernel",))
    words = open_log(run.log).words("name")
    convolutions = [
        (words[name], int(end - begin))
        for name, begin, end in zip(found["name"], found["start"], found["end"], strict=True)
        if words[name].startswith("conv_")
    ]
    kept = convolutions[-4:]  # of the last two steps
    assert all("_tf32_" in name for name, _ in kept), convolutions
    exact = [ns for name, ns in convolutions if "_tf32_" not in name]
    assert exact and min(exact) > max(ns for _, ns in kept)


def test_summary_agrees_with_the_script(reference: Run) -> None:
    summary = analyze(open_log(reference.log), details=False)
    peak = next(rank.gpu.peak_allocated for rank in summary.ranks if rank.rank == 0)
    assert peak == reference.report()["max_memory_allocated"]


def children(pid: int) -> list[int]:
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
            found += [int(child), *children(int(child))]
    return found


# Collectives that nobody waits for, in several groups: what they hold on to, NCCL's watchdogs let go of.
UNWAITED = """
import ctypes, os, runpy, sys
import torch, torch.distributed as dist
ctypes.CDLL(None).ph_watchdog_pulse(ctypes.c_int64(int(os.environ["PULSE_NS"])))
rank = int(os.environ["RANK"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
groups = [dist.new_group(range(4)) for _ in range(3)]
x = torch.ones(1 << 20, device="cuda")
for step in range(20):
    for group in groups:
        dist.all_reduce(x + step, group=group, async_op=True)
    for _ in range(100):
        x.add_(1)
    torch.cuda.synchronize()
dist.destroy_process_group()
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def unwaited(directory: Path, pulse_ns: int, disturb: Callable[[int], object] | None = None) -> Path:
    """A run whose watchdogs go round in real time every `pulse_ns`; `disturb` is called with its process id."""
    directory.mkdir()
    (directory / "unwaited.py").write_text(UNWAITED)
    arguments = ["--cluster", "1x4xH100", "unwaited.py", str(SAMPLES / "llama_fsdp2.py"), *TINY]
    process = subprocess.Popen(
        command("-o", "run.arrow", "--no-summary", "--no-recording", *arguments),
        cwd=directory,
        env={**os.environ, "PULSE_NS": str(pulse_ns)},
        stdout=subprocess.DEVNULL,
    )
    while disturb and process.poll() is None:
        disturb(process.pid)
    assert process.wait(timeout=240) == 0
    return directory / "run.arrow"


def stop_somebody(chooser: random.Random, pid: int) -> None:
    """A rank, or who else belongs to the run, is stopped for a moment."""
    try:
        victim = chooser.choice(children(pid)[1:])
        os.kill(victim, signal.SIGSTOP)
        time.sleep(chooser.random() * 0.1)
        os.kill(victim, signal.SIGCONT)
    except (OSError, IndexError):
        pass  # it has ended, or nothing has started
    time.sleep(chooser.random() * 0.1)


def test_equal_logs_however_ranks_are_scheduled(tmp_path: Path) -> None:
    """Nor does it matter when torch's helper threads look at what is done."""
    columns = ["kind", "rank", "stream", "start", "end", "launch", "ready", "id", "link", "bytes", "flops", "value"]
    first = rows(unwaited(tmp_path / "undisturbed", 30_000_000_000), *columns)
    assert len(first["id"]) > 10_000
    for seed in range(2):
        chooser = random.Random(seed)
        other = rows(unwaited(tmp_path / str(seed), 1_000_000, partial(stop_somebody, chooser)), *columns)
        assert {name: int((first[name] != other[name]).sum()) for name in columns} == dict.fromkeys(columns, 0)


def test_real_run_in_perfetto(tmp_path: Path, reference: Run) -> None:
    """Counts and durations in Perfetto's own engine are those of the log."""
    log = rows(reference.log, "start", "end", "rank", kinds=("kernel",))
    for name in ("run.perfetto", "run.json.gz"):
        export(str(reference.log), str(tmp_path / name))
        files = [tmp_path / name] if name == "run.perfetto" else sorted(tmp_path.glob("run-rank*.json.gz"))
        query = "select count(*), sum(dur) from slice where category = 'kernel' and dur > 0"
        answers = [trace_processor.ask(file, query)[0][0] for file in files]
        count, duration = (sum(column) for column in zip(*answers, strict=True))
        communication = rows(reference.log, "start", "end", kinds=("collective", "sendrecv"))
        allowed = {len(log["start"]), len(log["start"]) + len(communication["start"])}
        assert count in allowed, name
        total = int((log["end"] - log["start"]).sum())
        if count != len(log["start"]):
            total += int((communication["end"] - communication["start"]).sum())
        assert abs(duration - total) <= count, name  # JSON contains thousandths of a microsecond


def test_out_of_memory_at_the_capacity_of_the_gpu(tmp_path: Path) -> None:
    script = tmp_path / "fill.py"
    script.write_text(
        "import torch\nheld = []\n"
        "try:\n    while True: held.append(torch.empty(1 << 30, dtype=torch.uint8, device='cuda'))\n"
        "except torch.OutOfMemoryError as error: print(len(held), error)\n"
    )
    for gpu, gib, capacity in (("H100", 78, "79.18 GiB"), ("H200", 139, "139.80 GiB")):
        run = trace(tmp_path, "--cluster", f"1x1x{gpu}", str(script))
        assert run.out.startswith(f"{gib} CUDA out of memory.")
        assert f"total capacity of {capacity}" in run.out


PROLOGUE = """
import os, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
x = torch.ones(8, device="cuda")
dist.all_reduce(x)
torch.cuda.synchronize()
"""


def broken(directory: Path, body: str, *options: str, before: Any = None) -> Run:
    (directory / "broken.py").write_text(PROLOGUE + body)
    run = trace(directory, "--cluster", "1x3xH100", *options, "broken.py", check=False, before=before)
    assert run.status != 0
    assert "Traceback" not in run.err
    return run


@pytest.mark.parametrize("gpu", ["L40S", "RTX3090", "B200"])
def test_cub_takes_kernels_of_the_nearest_architecture(tmp_path: Path, gpu: str) -> None:
    """The wheel has none made for an L40S (8.9): a GPU runs those for 8.6, and CUB asks which they are."""
    (tmp_path / "sort.py").write_text(
        "import torch\nx = torch.randn(100000, device='cuda').sort()\ntorch.cuda.synchronize()\n"
    )
    run = trace(tmp_path, "--cluster", f"1x1x{gpu}", "sort.py")
    assert any("RadixSort" in row["name"] for row in records(run.log, "kernel", "name"))


def test_collective_that_one_rank_never_joins(tmp_path: Path) -> None:
    run = broken(tmp_path, "if rank != 2: dist.all_reduce(x); torch.cuda.synchronize()\n")
    reported = r"rank 0 waits in all_reduce of 8 float32 \(called at broken.py:\d+\), sequence number 1 of group "
    assert re.search(reported + r"\(ranks 0-2\); not there: rank 2", run.err)
    assert "rank 2 has exited with status 0" in run.err
    last = run.err.strip().splitlines()[-1]
    assert last.startswith("FAILED: deadlock: a rank ended before") and ": rank 0 waits in all_reduce of 8" in last
    assert re.search(r"\n      at \S+\.py:\d+, calling synchronize\n", run.err)
    assert open_log(run.log).num_rows > 0


def test_rank_that_sleeps_for_ever_is_diagnosed(tmp_path: Path) -> None:
    body = "if rank == 2: import threading; threading.Event().wait()\ndist.all_reduce(x); torch.cuda.synchronize()\n"
    run = broken(tmp_path, body, "--hang-timeout", "3")
    assert "not there: rank 2" in run.err
    assert re.search(r"rank 2 runs or sleeps outside CUDA\n      at \S+\.py:\d+, calling wait", run.err)


def test_mismatched_collectives(tmp_path: Path) -> None:
    run = broken(tmp_path, "dist.all_reduce(x[: 8 - rank]); torch.cuda.synchronize()\n")
    assert "mismatched collectives in group (ranks 0-2), sequence number 1" in run.err
    assert len(re.findall(r"calls all_reduce of [678] float32 \(called at broken.py:\d+\)", run.err)) == 2
    (tmp_path / "a-packages").mkdir()
    library = "import torch.distributed as d\ndef hook(x): d.all_reduce(x.contiguous())\n"
    (tmp_path / "a-packages" / "library.py").write_text(library)
    body = (  # a library's hook in a backward pass: the script's line is that of the main thread
        "import sys; sys.path.insert(0, 'a-packages'); import library\n"
        "y = x.detach().requires_grad_() * 2; y.register_hook(library.hook)\n"
        "dist.broadcast(x, 0) if rank == 0 else y.sum().backward()\n"
    )
    run = broken(tmp_path, body + "torch.cuda.synchronize()\n")
    assert "calls broadcast of 8 float32, root 0" in run.err
    assert re.search(r"calls all_reduce of 8 float32 \(called at library.py:2, from broken.py:\d+\)", run.err)
    body = (
        "from torch.distributed.fsdp import fully_shard\n"
        "net = torch.nn.Sequential(torch.nn.Linear(8, 8)).cuda(); fully_shard(net[0], reshard_after_forward=False)\n"
        "fully_shard(net)\n"
        "y = net(x.detach().requires_grad_())\n"
        "dist.barrier() if rank == 0 else y.sum().backward()\n"
    )
    run = broken(tmp_path, body + "torch.cuda.synchronize()\n")
    first, last = (len((PROLOGUE + body).splitlines()) - n for n in (1, 0))
    phase = r"FSDP::post_backward_reduce \(0\)"
    assert re.search(rf"\(called at backward of broken.py:{first}, from broken.py:{last}, {phase}\)", run.err)


def test_two_sends_that_fit_into_buffers_need_no_receive(tmp_path: Path) -> None:
    body = (
        "n, peer = (1 << 18, 1 - rank) if rank < 2 else (0, 0)\n"
        "if rank < 2:\n    theirs = torch.empty(n, device='cuda')\n"
        "    dist.send(torch.ones(n, device='cuda'), peer); dist.recv(theirs, peer)\n"
        "torch.cuda.synchronize(); print('exchanged')\n"
    )
    (tmp_path / "sends.py").write_text(PROLOGUE + body)
    assert trace(tmp_path, "--cluster", "1x3xH100", "sends.py").out.count("exchanged") == 3
    run = broken(tmp_path, body.replace("1 << 18", "1 << 25"))
    assert re.search(r"rank 0 waits to send 134217728 bytes in .* \(called at broken.py:\d+\)", run.err)


def test_a_rank_that_sleeps_longer_than_the_timeout_ends_the_job(tmp_path: Path) -> None:
    body = (
        "import datetime, time\n"
        "group = dist.new_group(timeout=datetime.timedelta(seconds=10))\n"
        "dist.all_reduce(x, group=group); torch.cuda.synchronize()\n"
        "if rank == 1: time.sleep(LATE)\n"
        "dist.all_reduce(x, group=group); torch.cuda.synchronize(); print('through')\n"
        "while LATE > 10: x.add_(1)  # the watchdog ends it, some real time later\n"
    )
    (tmp_path / "late.py").write_text(PROLOGUE + body.replace("LATE", "5"))
    assert trace(tmp_path, "--cluster", "1x3xH100", "late.py").out.count("through") == 3
    (tmp_path / "late.py").write_text(PROLOGUE + body.replace("LATE", "60"))
    run = trace(tmp_path, "--cluster", "1x3xH100", "late.py", check=False)
    assert run.status != 0
    assert "Watchdog caught collective operation timeout" in run.err


# A batch of rows that fits, then names that do not.
LONG_NAMES = """
import random
for _ in range(25_000): x.add_(1)
chance = random.Random(rank)
for _ in range(6_000):
    with torch.profiler.record_function(chance.randbytes(400).hex()):
        x.add_(1)
"""


def test_log_that_does_not_fit_the_disk(tmp_path: Path) -> None:
    """The limit lies above the shared memory (a file, to the kernel) and below the log."""
    limit = 5 << 20

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    run = broken(tmp_path, LONG_NAMES, before=full)
    assert "run.arrow" in run.err and "File too large" in run.err
    assert open_log(run.log).num_rows > 0


def test_shared_memory_does_not_need_dev_shm(tmp_path: Path) -> None:
    """/dev/shm of 64 KiB, as in a small container: the run takes nothing from it."""
    mount = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"'
    wrapped = ["unshare", "--mount", "--map-root-user", "sh", "-c", mount, "sh"]
    if subprocess.run([*wrapped, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel allows no mount namespace here")
    script = tmp_path / "ok.py"
    script.write_text(PROLOGUE + "print('fine')\n")
    done = subprocess.run(
        [*wrapped, *command("--no-summary", "--cluster", "1x4xH100", str(script))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0 and done.stdout.count("fine") == 4


_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def _is_like(line: str, other: str) -> bool:
    """True if the two are equal. In other Pythons than README's, 3.11, which enter other numbers of frames, numbers may
    differ by 0.1 %, or by one in their first decimal."""
    if sys.version_info[:2] == (3, 11):
        return line == other
    numbers = ([float(found.replace(",", "")) for found in _NUMBER.findall(text)] for text in (line, other))
    return _NUMBER.sub("", line) == _NUMBER.sub("", other) and next(numbers) == pytest.approx(
        next(numbers), rel=1e-3, abs=0.11
    )


def test_readme_commands(tmp_path: Path) -> None:
    """The README's first command prints the README's lines; the readers that it names read its log."""
    readme = (SAMPLES.parent / "README.md").read_text()
    shown = readme.partition("$ phantora trace samples/llama_fsdp2.py --cluster 1x4xH100 -o run.perfetto\n")[2]
    done = subprocess.run(
        command(str(SAMPLES / "llama_fsdp2.py"), "--cluster", "1x4xH100", "-o", "run.perfetto"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = shown.partition("```")[0].splitlines()
    assert lines[-1].startswith("TRUST")
    printed = (*done.stdout.splitlines(), *done.stderr.splitlines())
    assert [line for line in lines if not any(_is_like(line, other) for other in printed)] == []
    assert (tmp_path / "run.perfetto").stat().st_size > 0
    start = command()[:-1]
    export_some = ["export", "run.arrow", "-o", "traces/", "--ranks", "0-3"]
    readers = (["analyze", "run.arrow", "--json"], export_some, ["doctor"])
    for arguments in readers:
        subprocess.run([*start, *arguments], cwd=tmp_path, capture_output=True, check=True, timeout=120)
    assert len(list((tmp_path / "traces").iterdir())) == 4


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        (["-m", "trainer", "--cluster", "2xH200", "--", "--batch", "4"], ["--batch", "4"]),
        (["trainer.py", "--batch", "4", "--cluster=2xH200"], ["--batch", "4"]),
        (["--cluster", "2xH200", "trainer.py", "--cluster", "mine"], ["--cluster", "mine"]),
        (["trainer.py", "--cluster", "2xH200", "--", "-o", "mine"], ["-o", "mine"]),
    ],
)
def test_whose_arguments_are_whose(tmp_path: Path, arguments: list[str], seen: list[str]) -> None:
    """--cluster and -o may stand behind the script; what follows ``--`` is the script's alone."""
    (tmp_path / "trainer.py").write_text("import os, sys\nprint(os.environ['WORLD_SIZE'], sys.argv[1:])\n")
    done = phantora("trace", "--null", *arguments, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"2 {seen}") == 2

"""The host's work in virtual time: operators on CPU tensors, and checkpoints (``--disk``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantora.errors import PhantoraError
from phantora.hardware.hosts import load_host
from phantora.jobs.answer import checkpoint_cost
from phantora.rank.patches.disk import parse
from phantora.trace.reader import open_log
from tests.support.runs import Run, trace

PROGRAM = """
import json, os, time
from pathlib import Path
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
dist.init_process_group("cpu:gloo,cuda:nccl")
rank, folder, times = dist.get_rank(), Path(__file__).parent, {}
torch.cuda.set_device(rank)
def measure(name, call):
    began = time.perf_counter()
    result = call()
    times[name] = (time.perf_counter() - began) * 1e3
    return result
x, large, many = torch.zeros(4 << 20), torch.zeros(9 << 20), [torch.zeros(1 << 20) for _ in range(4)]
measure("in place", lambda: x.mul_(2))
measure("new", lambda: large + 1)
copied = torch.zeros(4 << 20); measure("copy", lambda: copied.copy_(x))
measure("many", lambda: torch._foreach_mul_(many, 2.0))
measure("few", lambda: x[:1000].mul_(2))
measure("rows", lambda: x.view(-1, 1024)[torch.tensor([1, 2, 3])])
from phantora.rank.shims.deepspeed import _CPUAdam
measure("DeepSpeedCPUAdam", lambda: _CPUAdam.adam_update(*[None] * 8, x))
torch.set_num_threads(3)
measure("three threads", lambda: x.mul_(2))
torch.set_num_threads(1)
measure("list", lambda numbers=list(range(100_000)): torch.tensor(numbers))
for device in ("cpu", "cuda") * 3:  # the last ones count: their code is in the caches
    loss = torch.zeros(8, device=device, requires_grad=True).sum()
    measure(f"pass on {device}", loss.backward)
parameters = [torch.zeros(8, device="cuda") for _ in range(200)]
torch._foreach_mul_(parameters, 2.0)
for _ in range(4000): torch.empty(0)  # milliseconds of other work
for name in "cold", *["again"] * 4, "warm": measure(f"parameters {name}", lambda: torch._foreach_mul_(parameters, 2.0))
torch._foreach_mul_(parameters * 50, 1.0)
measure("parameters walked", lambda: torch._foreach_mul_(parameters, 2.0))
for count in 200, 400:
    weights = [torch.nn.Parameter(parameters[0]) for _ in range(count)]
    for weight in weights: weight.grad = torch.zeros(8, device="cuda")
    zeroed = torch.optim.SGD(weights, 0.1, foreach=True)
    for _ in range(6): measure(f"zero_grad {count}", lambda: zeroed.zero_grad(set_to_none=False))
for name, file in ("written", "/tmp/call.py"), ("generated", f"/tmp/torchinductor/ab/cab{'c' * 49}.py"):
    exec(compile("def call(x):" + "\\n    x = x + 1" * 200, file, "exec"))
    times["units"] = len(call.__code__.co_code) // 2
    measure(f"{name} code", lambda: call(0))
weight = torch.zeros(2 << 20, device="cuda")  # 8 MiB
pinned = torch.empty(32 << 20, dtype=torch.uint8, pin_memory=True)
bare, made = torch.UntypedStorage(40 << 20, device="cpu"), torch.zeros(40 << 20, dtype=torch.uint8, device="cuda")
measure("bare storage", lambda: bare.copy_(made.untyped_storage()))
measure("bare storage again", lambda: bare.copy_(made.untyped_storage()))
del bare, made
kept = torch.zeros(64 << 20)
del kept
sharded = distribute_tensor(weight, init_device_mesh("cuda", (2,)), [Shard(0)])
measure("file", lambda: torch.save(weight, folder / f"{rank}.pt"))
measure("distributed", lambda: dcp.save({"w": sharded}, checkpoint_id=folder / "sync"))
from safetensors.torch import load_file, safe_open, save_file; import safetensors
save_file({"w": weight}, folder / f"{rank}.safetensors")
measure("load", lambda: torch.load(folder / f"{rank}.pt"))
measure("load mapped", lambda: torch.load(folder / f"{rank}.pt", mmap=True))
measure("load safetensors", lambda: load_file(folder / f"{rank}.safetensors"))
with safe_open(folder / f"{rank}.safetensors", "pt") as opened:
    times["class"] = (isinstance(opened, safe_open), isinstance(1, safe_open), safe_open is safetensors.safe_open)
    measure("load tensor", lambda: opened.get_tensor("w"))
    measure("load slice", lambda: opened.get_slice("w")[: 1 << 20])
measure("load distributed", lambda: dcp.load({"w": sharded}, checkpoint_id=folder / "sync"))
for name, sleep in ("early", 0), ("late", 0.5):
    saving = measure("begin", lambda: dcp.async_save({"w": sharded}, checkpoint_id=folder / name))
    time.sleep(sleep)
    times[name + " done"] = saving.done()
    measure(name, saving.result)
    times[name + " after"] = saving.done()
from torch.distributed.checkpoint import staging
options = staging.StagingOptions(use_pinned_memory=True, use_shared_memory=False)
large = torch.zeros(16 << 20, device="cuda")  # 64 MiB
stager = staging.DefaultStager(options)
save = lambda: dcp.async_save({"w": large}, checkpoint_id=folder / "staged", async_stager=stager)
saving = measure("stage", save)
times["stage done"] = saving.staging_completion.done()
measure("launch next to it", lambda: large.add_(1))
measure("launch again", lambda: large.add_(1))
measure("staged", saving.staging_completion.result)
if rank == 0: print(json.dumps(times))
dist.destroy_process_group()
"""
MIB = 1 << 20


def host_costs() -> dict[str, int]:
    """Costs of two ranks on the default host."""
    host = load_host("default")
    return host.slower(host.pace(2)).api_ns


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("host") / "host.py"
    path.write_text(PROGRAM)
    return trace(path.parent, "--cluster", "1x2xH100", "--disk", "100MB/s,shared", path.name)


def test_operators_on_cpu_tensors_take_the_bytes_that_they_move(run: Run) -> None:
    costs, times = host_costs(), run.report()

    def of(alone: str, limit: str, threads: int, rivals: int) -> float:
        """ms per MiB."""
        return (costs[alone] / threads + costs[limit] * (rivals - 1 / threads)) / 1e6 / 1024

    share = of("HOST_MOVE_GIB", "HOST_SATURATED_GIB", 1, 2)  # one thread, as torchrun sets it; two ranks
    assert times["in place"] == pytest.approx(32 * share, rel=0.1)
    pages = of("HOST_FAULT_GIB", "HOST_FAULT_SATURATED_GIB", 1, 1)
    assert times["new"] == pytest.approx(72 * share + 36 * pages, rel=0.1)
    assert times["copy"] == pytest.approx(48 * share, rel=0.1), "the caches read what is written"
    assert times["many"] == pytest.approx(32 * share, rel=0.15)
    assert times["DeepSpeedCPUAdam"] == pytest.approx(28 * 4 * share, rel=0.1), "28 bytes a parameter"
    assert max(times["few"], times["rows"]) < 0.5 * times["in place"], "calls, and three rows"
    assert times["three threads"] == pytest.approx(32 * of("HOST_MOVE_GIB", "HOST_SATURATED_GIB", 3, 2), rel=0.1)


def test_a_storage_that_python_makes_has_new_pages(run: Run) -> None:
    times = run.report()
    pages = 40 * host_costs()["HOST_FAULT_GIB"] / 1e6 / 1024
    assert times["bare storage"] - times["bare storage again"] == pytest.approx(pages, rel=0.1)


def test_the_memory_of_the_host_is_counted(run: Run) -> None:
    trailer = open_log(run.log).trailer
    assert trailer["host_pinned_bytes"] == 2 * 32 * MIB, "two ranks"
    held = 2 * 16 + 36 + 4 * 4 + 32 + 256  # MiB: x and its copy, large, many, pinned, kept
    assert trailer["host_memory_bytes"] == 2 * held * MIB


def test_a_python_list_takes_its_numbers(run: Run) -> None:
    assert run.report()["list"] == pytest.approx(100_000 * host_costs()["PY_ELEMENT"] / 1e6, rel=0.05)


def test_parameters_leave_the_caches_during_other_work(run: Run) -> None:
    times, costs = run.report(), host_costs()
    more = times["parameters cold"] - times["parameters warm"]
    assert more == pytest.approx((200 * costs["LIST_COLD"] + costs["OP_COLD"]) / 1e6, rel=0.1)
    assert times["parameters walked"] < times["parameters warm"] + 0.3 * more, "a walk through a list displaces nothing"


def test_zero_grad_runs_through_its_parameters(run: Run) -> None:
    costs, times = host_costs(), run.report()
    more = times["zero_grad 400"] - times["zero_grad 200"]
    assert more == pytest.approx(200 * (costs["OPTIMIZER_PARAM"] + costs["OP_LIST"]) / 1e6, rel=0.1)


def test_code_that_inductor_generates_runs_to_its_end(run: Run) -> None:
    times = run.report()
    more = times["generated code"] - times["written code"]
    assert more == pytest.approx((times["units"] - 64) * host_costs()["PY_CODE"] / 1e9, rel=0.02)


def test_a_backward_pass_on_a_gpu_wakes_a_thread(run: Run) -> None:
    costs, times = host_costs(), run.report()
    handover = (costs["BACKWARD_CALL"] + costs["BACKWARD_WAKE"]) / 1e6
    assert times["pass on cpu"] < handover < times["pass on cuda"]


def test_checkpoints_take_the_bytes_that_they_write_and_read(run: Run) -> None:
    times = run.report()
    assert 83 < times["file"] < 105, "8 MiB at 100 MB/s, and new memory of a copy"
    assert 83 < times["distributed"] < 150, "two ranks write 4 MiB each to one disk"
    for name in ("load", "load mapped", "load safetensors", "load tensor", "load distributed"):
        assert 83 < times[name] < 150, name
    assert 41 < times["load slice"] < 60, "half of the tensor"
    assert times["class"] == [True, False, True], "safe_open is one class in all modules"
    assert times["begin"] < 40 and not times["early done"] and 60 < times["early"] < 95
    assert times["late done"] and times["late"] < 1 and times["early after"]
    cost = checkpoint_cost(open_log(run.log))
    assert cost is not None and 0.05 < cost < 0.12


def test_a_launch_waits_for_memory_that_a_stager_pins(run: Run) -> None:
    times = run.report()
    pinned = (host_costs()["HOST_ALLOC_GIB"] / 16 + host_costs()["HOST_ALLOC"]) / 1e6
    assert times["stage"] < 0.6 * pinned and not times["stage done"], "the call does not wait for the copy"
    assert times["launch next to it"] == pytest.approx(pinned, rel=0.1)
    assert times["launch again"] < 0.1 * pinned and times["staged"] < 0.1 * pinned


def test_rates_of_disks() -> None:
    assert parse("2GB/s").ns(10**9, 4, 0) == 2 * 10**9 and parse("free").ns(1, 1, 0) == 0
    assert parse("20GB/s,shared").shared
    for wrong in ("2", "0GB/s", "2GB", "fast"):
        with pytest.raises(PhantoraError, match="--disk"):
            parse(wrong)


NUMBERS = """
import json, time, torch
numbers, times = torch.zeros(64, 64, device="cuda"), {}
flag = numbers[0, 0] == 0
def item(): return numbers[0, 0].item()
def truth(): return bool(flag)
def read(): return flag.item()
with torch.no_grad():
    for call in (item, truth, read):
        for _ in range(10): call()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(300): call()
        times[call.__name__] = (time.perf_counter() - began) / 300 * 1e6
print(json.dumps(times))
"""


def test_a_read_of_one_number_is_a_copy_and_little_else(tmp_path: Path) -> None:
    """10.6 us on an H200's host that took 1 / 0.88 of the reference host's time (2026-11-21-h200x4/host_time.jsonl)."""
    (tmp_path / "numbers.py").write_text(NUMBERS)
    times = trace(tmp_path, "--cluster", "1x1xH200", "--host", "emerald-rapids-fast", "numbers.py").report()
    assert times["item"] == pytest.approx(0.88 * 10.6, rel=0.12)
    assert times["truth"] - times["read"] < 0.5, "bool() calls item()"

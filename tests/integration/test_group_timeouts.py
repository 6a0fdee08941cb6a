"""Timeouts of process groups go by virtual time, and by real time only where no rank can go on."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.runs import trace

LIMIT = timedelta(seconds=1)
ENDING = f"""
import ctypes, os, time
import torch, torch.distributed as dist
from datetime import timedelta
dist.init_process_group("nccl", timeout=timedelta(seconds={LIMIT.total_seconds()}))
runtime = ctypes.CDLL(None)
runtime.ph_watchdog_pulse(ctypes.c_int64(200_000_000))  # watchdogs look often
x = torch.ones(4, device="cuda")
dist.all_reduce(x)
time.sleep(1)  # the watchdog makes a round, and waits anew
dist.all_reduce(x)
torch.cuda.synchronize()
runtime.ph_exit(0)  # as at the end of a process that does not destroy its groups: their watchdogs go on
begun = os.times().elapsed
while os.times().elapsed - begun < 1.5:
    sum(range(100_000))
print("ended in peace", flush=True)
"""
PROGRAM = f"""
import ctypes, os, pickle, time
os.environ["TORCH_NCCL_ENABLE_TIMING"] = "1"  # hooks and traces ask for it
os.environ["TORCH_FR_BUFFER_SIZE"] = os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] = "100"
import torch, torch.distributed as dist
from datetime import timedelta
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", timeout=timedelta(seconds={LIMIT.total_seconds()}))
ctypes.CDLL(None).ph_watchdog_pulse(ctypes.c_int64(200_000_000))  # watchdogs look often
x = torch.ones(4, device="cuda")
dist.all_reduce(x)
torch.cuda.synchronize()
if rank == 1:  # longer than the limit, in real time alone
    begun = os.times().elapsed
    while os.times().elapsed - begun < 2.5:
        sum(range(100_000))
dist.all_reduce(x)
torch.cuda.synchronize()
time.sleep(100)  # longer in virtual time alone: what was done before is not late
# The watchdog has looked meanwhile: it notes how long what is done has taken.
trace = pickle.loads(torch._C._distributed_c10d._dump_nccl_trace())
assert all(entry.get("duration_ms", 0) > 0 for entry in trace["entries"]), trace["entries"]

# A limit that is extended for a while counts until its collective is seen to be done.
group = dist.distributed_c10d._get_default_group()
backend = group._get_backend(torch.device("cuda", rank))
dist.distributed_c10d._add_ephemeral_timeout_for_all_pgs(timedelta(seconds=10))
longer = group.allreduce(x)
assert backend._verify_work_timeout(longer, timedelta(seconds=11))
torch.cuda.synchronize()
time.sleep(1)
assert backend._verify_work_timeout(group.allreduce(x), timedelta(seconds=1))

# Waits until the watchdog has seen what is done.
seen = []
group._register_on_completion_hook(seen.append)
dist.all_reduce(x)
group._wait_for_pending_works()
assert seen, "the hook did not run"
print("all in time", flush=True)
if rank == 1:
    os._exit(0)
dist.all_reduce(x)  # nobody joins
torch.cuda.synchronize()
"""


def test_only_what_nobody_joins_is_late(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = trace(tmp_path, "--cluster", "1x2xH100", "program.py", check=False)
    assert done.out.count("all in time") == 2, done.err[-4000:]
    assert "Watchdog caught collective operation timeout" in done.err
    assert done.status != 0


def test_nothing_is_late_while_a_process_ends(tmp_path: Path) -> None:
    (tmp_path / "ending.py").write_text(ENDING)
    run = trace(tmp_path, "--cluster", "1x1xH100", "ending.py")
    assert run.status == 0 and "ended in peace" in run.out, run.err
    assert "timeout" not in run.err


ANY = f"""
import ctypes, os, time
import torch, torch.distributed as dist
from datetime import timedelta
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", timeout=timedelta(seconds={LIMIT.total_seconds()}))
ctypes.CDLL(None).ph_watchdog_pulse(ctypes.c_int64(200_000_000))  # watchdogs look often
x = torch.ones(4, device="cuda")
dist.all_reduce(x)
torch.cuda.synchronize()
if rank == 1:  # longer than the limit, in real time alone
    begun = os.times().elapsed
    while os.times().elapsed - begun < 2.5:
        sum(range(100_000))
dist.all_reduce(x)
torch.cuda.synchronize()
time.sleep(100)  # longer in virtual time alone
begun = os.times().elapsed
for _ in range(8):  # rounds of a watchdog take no real time
    dist.all_reduce(x)
    torch.cuda.synchronize()
    time.sleep(1)
assert os.times().elapsed - begun < 6, "the watchdog was waited for"
print("all in time", flush=True)
if rank == 1:
    os._exit(0)
dist.all_reduce(x)  # nobody joins
torch.cuda.synchronize()
"""


def test_limits_go_by_virtual_time_in_each_torch(tmp_path: Path) -> None:
    """ProcessGroupNCCL, and from torch 2.15 on ProcessGroupNCCL2."""
    (tmp_path / "program.py").write_text(ANY)
    done = trace(tmp_path, "--cluster", "1x2xH100", "program.py", check=False)
    assert done.out.count("all in time") == 2, done.err[-4000:]
    assert "timeout" in done.err and done.status != 0


GROUPS = """
import os, torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
groups = [dist.new_group([0, 1]) for _ in range(70)]
x = torch.ones(4, device="cuda")
for group in groups:
    dist.all_reduce(x, group=group)
torch.cuda.synchronize()
print("groups", len(groups), flush=True)
dist.destroy_process_group()
"""


def test_more_than_64_process_groups(tmp_path: Path) -> None:
    (tmp_path / "groups.py").write_text(GROUPS)
    done = trace(tmp_path, "--cluster", "1x2xH100", "groups.py", check=False)
    assert done.status == 0 and done.out.count("groups 70") == 2, done.err[-4000:]


BEFORE = """
import os, pickle, time
os.environ["TORCH_FR_BUFFER_SIZE"] = os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] = "100"
os.environ["TORCH_NCCL_ENABLE_TIMING"] = "1"
import torch, torch.distributed as dist
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
groups = [dist.new_group([0]) for _ in range(20)]  # each has a watchdog, and the process is no rank yet
x = torch.ones(4, device="cuda")
for group in groups:
    dist.all_reduce(x, group=group)
torch.cuda.synchronize()
time.sleep(1)
entries = pickle.loads(torch._C._distributed_c10d._dump_nccl_trace())["entries"]
print("timed", sum("duration_ms" in entry for entry in entries), "of", len(entries), flush=True)
large, held = torch.ones(1 << 20, device="cuda"), []
for step in range(14):
    dist.all_reduce(large + step, async_op=True)  # the next call after a round lets go of its 4 MiB
    torch.cuda.synchronize()
    time.sleep(0.06)
    held.append(torch.cuda.memory_allocated() // (4 << 20) - 1)
print("held", *held, flush=True)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Output of a process whose watchdogs were there before it became a rank."""
    folder = tmp_path_factory.mktemp("rounds")
    (folder / "before.py").write_text(BEFORE)
    done = trace(folder, "--cluster", "1x1xH100", "--", sys.executable, "before.py", check=False)
    assert done.status == 0, done.err[-4000:]
    return done.out


def test_watchdogs_of_a_process_that_becomes_a_rank_take_part(rounds: str) -> None:
    assert "timed 20 of 20" in rounds


def test_rounds_of_a_watchdog_are_100_ms_apart(rounds: str) -> None:
    """Steps of 60 ms: in some the buffer of the step before is still there, as the rounds drift through the steps."""
    held = next(line for line in rounds.splitlines() if "held" in line).split("held ")[1].split()
    assert 4 <= held.count("2") <= 8 and set(held) == {"1", "2"}

"""Torch's symmetric memory on real ranks: rendezvous, its kernels, copies, fused products, memory, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import records, trace

MIB = 1 << 20
PROGRAM = """
import json, os, time, torch, torch.distributed as dist
import torch._inductor.config
from torch.distributed._functional_collectives import all_gather_tensor, reduce_scatter_tensor
import torch.distributed._symmetric_memory as symm
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
name, device = dist.group.WORLD.group_name, torch.device("cuda", rank)
ops, found = torch.ops.symm_mem, {}

before = torch.cuda.mem_get_info()[0]
large = symm.empty(64 << 20, dtype=torch.uint8, device=device)
found["memory"] = before - torch.cuda.mem_get_info()[0]
handle = symm.rendezvous(large, name)
found["imported"] = before - torch.cuda.mem_get_info()[0] - found["memory"]

torch.tensor([handle.buffer_ptrs[(rank + i) % world] for i in range(world)], device=device)  # other ranks have others

small = symm.empty(16, dtype=torch.float32, device=device).fill_(rank + 1)
symm.rendezvous(small, name)
found["one shot"] = ops.one_shot_all_reduce(small, "sum", name)[0].item()
own = torch.full((16,), 10.0 * (rank + 1), device=device)
found["copied"] = ops.one_shot_all_reduce_copy(small, own, "sum", name)[0].item()
parts = symm.empty(16 * world, dtype=torch.float32, device=device).copy_(torch.arange(16.0 * world, device=device))
symm.rendezvous(parts, name)
out = torch.empty(16, device=device)
ops.reduce_scatter_out(parts, name, False, out)
found["scattered"] = out[0].item()
small.fill_(rank + 1)
ops.two_shot_all_reduce_(small, "sum", name)
found["two shot"] = small[15].item()
try:
    ops.multimem_all_reduce_(small, "sum", name)
except RuntimeError as error:
    found["multimem"] = str(error).splitlines()[0]

if rank == 0:
    torch.cuda._sleep(20_000_000)  # the others wait for it at the barrier
handle.barrier(channel=1)
handle.put_signal((rank + 1) % world, channel=2)
handle.wait_signal((rank - 1) % world, channel=2)
peer = handle.get_buffer((rank + 1) % world, (64 << 20,), torch.uint8)
local = torch.empty_like(peer)
local.copy_(peer)  # pulled
peer.copy_(local)  # pushed
handle.barrier(channel=1)

def times(work):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
    return start.elapsed_time(end)

def of(rows, columns):
    return torch.empty(rows, columns, device=device, dtype=torch.bfloat16)

dim, rows = 8192, 8192
shard, weight = of(rows // world, dim), of(dim, dim // world)
whole, second = of(rows, dim // world), of(dim // world, dim)
gathered, scattered = of(rows, dim), of(rows // world, dim)

def gather():
    dist.all_gather_into_tensor(gathered, shard)

def multiply_scatter():
    dist.reduce_scatter_tensor(scattered, whole @ second)

wait = torch.ops._c10d_functional.wait_tensor
found["times"] = {
    "product": times(lambda: gathered @ weight),
    "gather, product": times(lambda: (gather(), gathered @ weight)),
    "fused gather": times(lambda: ops.fused_all_gather_matmul(shard, [weight], 0, name)),
    "second product": times(lambda: whole @ second),
    "product, scatter": times(multiply_scatter),
    "fused scatter": times(lambda: ops.fused_matmul_reduce_scatter(whole, second, "sum", 0, name)),
    "gather": times(gather),
    "low contention": times(lambda: wait(ops._low_contention_all_gather(shard, name))),
    "low contention scatter": times(lambda: wait(ops._low_contention_reduce_scatter(gathered, "sum", name))),
}

torch._inductor.config._micro_pipeline_tp = True
symm.enable_symm_mem_for_group(name)

@torch.compile
def pipelined(shard, weight, whole, second):
    group = dist.group.WORLD
    return all_gather_tensor(shard, 0, group) @ weight, reduce_scatter_tensor(whole @ second, "sum", 0, group)

found["times"]["compiled"] = times(lambda: pipelined(shard, weight, whole, second))
if rank == 0:  # a kernel that gives up ends the context: the last thing that this rank does
    begun = time.perf_counter()
    handle.barrier(channel=3, timeout_ms=250)
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        found["gave up"] = str(error).splitlines()[0], time.perf_counter() - begun
    print(json.dumps(found), flush=True)
    os._exit(0)  # torch would end its group in vain
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    directory = tmp_path_factory.mktemp("symmetric")
    (directory / "program.py").write_text(PROGRAM)
    done = trace(directory, "--cluster", "1x4xH100", "program.py")
    return done.report(), done.log


def test_a_barrier_that_nobody_joins_ends_the_context_at_its_limit(run: tuple[dict[str, Any], Path]) -> None:
    message, seconds = run[0]["gave up"]
    assert "unspecified launch failure" in message
    assert seconds == pytest.approx(0.25, abs=0.01)


def test_small_reductions_are_true_and_large_memory_counts(run: tuple[dict[str, Any], Path]) -> None:
    found, _ = run
    assert found["one shot"] == found["two shot"] == 10
    assert found["copied"] == 100
    assert found["scattered"] == 0
    assert found["memory"] == 66 * MIB, "the buffer, and its signals in a granule of their own"
    assert found["imported"] <= 2 * MIB, "peers' memory is theirs; their addresses take a segment"
    assert "multicast support is required" in found["multimem"]


def test_barriers_wait_and_copies_take_the_links(run: tuple[dict[str, Any], Path]) -> None:
    _, log = run
    copies = [
        r
        for r in records(log, "sendrecv", "rank", "name", "bytes", "start", "end", "value", "provenance")
        if r["bytes"] == 64 * MIB and "PtoP" in r["name"]
    ]
    assert sorted((r["rank"], r["value"]) for r in copies) == sorted(2 * [(rank, (rank + 1) % 4) for rank in range(4)])
    assert {r["provenance"] for r in copies} == {"fitted"}
    for row in copies:
        assert 64 * MIB / (row["end"] - row["start"]) == pytest.approx(370, rel=0.03)
    barriers = [
        r
        for r in records(log, "collective", "rank", "name", "start", "end", "last_rank", "seq")
        if "barrier" in r["name"] and r["seq"] == 1 << 32
    ]
    first = sorted(barriers, key=lambda r: (r["end"], r["rank"]))[:4]
    assert len({r["end"] for r in first}) == 1
    slept = [r["end"] - r["start"] for r in first]
    assert slept[0] == pytest.approx(5_100, abs=10) and min(slept[1:]) > 9_000_000, "20 million cycles"
    assert {r["last_rank"] for r in first} == {0}


def test_fused_products_hide_most_of_the_communication(run: tuple[dict[str, Any], Path]) -> None:
    took = run[0]["times"]
    assert took["product"] < took["fused gather"] < took["gather, product"]
    assert took["second product"] < took["fused scatter"] < took["product, scatter"]
    assert took["compiled"] == pytest.approx(took["fused gather"] + took["fused scatter"], rel=0.1), "by Inductor"
    assert took["low contention"] == pytest.approx(took["gather"], rel=0.3)
    assert took["low contention"] < took["low contention scatter"] < 3 * took["gather"]

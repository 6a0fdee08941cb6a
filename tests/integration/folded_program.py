"""Small distributed trainings and exchanges, run folded and not. Every process prints one line of JSON."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory
import torch.distributed.distributed_c10d as c10d
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH = 1024
ODD = 2  # the rank that stands for others in a fold of eight


STEPS = 3  # the first of which is the longest


def model(layers: int = 3) -> nn.Sequential:
    with torch.device("cuda"):  # numbers of the host's generator would take time
        blocks = [
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(layers)
        ]
    return nn.Sequential(*blocks).to(torch.bfloat16)


def train(net: nn.Module) -> dict[str, float]:
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, foreach=True)
    times = []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        began = time.perf_counter_ns()
        net(torch.randn(2048, WIDTH, device="cuda", dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        times.append(time.perf_counter_ns() - began)
    return {"step_ns": statistics.median(times), "peak": torch.cuda.max_memory_allocated()}


def ddp(rank: int, world: int) -> dict[str, float]:
    return train(nn.parallel.DistributedDataParallel(model()))


def fsdp(rank: int, world: int) -> dict[str, float]:
    net = model()
    for block in net:
        fully_shard(block)
    fully_shard(net)
    return train(net)


class Rows(nn.Module):
    """Wide matrices of few rows."""

    def __init__(self, *rows: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.empty(each, WIDTH << 5).normal_() for each in rows)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x[:64].repeat(1, 1 << 5)
        return torch.cat([wide @ weight.T for weight in self.weights], 1)


def uneven_rows(rank: int, world: int) -> dict[str, float]:
    """Of eight ranks the first four have rows of all parameters, two more of two, and the last two of one; the seventh
    has fewer, the eighth none."""
    net = Rows(4, 12, 20).to("cuda", torch.bfloat16)
    fully_shard(net)
    return train(net)


def kinds(rank: int, world: int) -> dict[str, float]:
    """Ranks of four kinds, by a split of their own."""
    dist.all_reduce(torch.ones(1 << 20, device="cuda"))
    work = torch.ones(1 << 20, device="cuda")
    for _ in range(1 + (rank > 1) + (rank > 4) + (rank > 6)):
        work.add_(1)
    dist.all_reduce(work)
    torch.cuda.synchronize()
    return {}


def hsdp(rank: int, world: int) -> dict[str, float]:
    mesh = init_device_mesh("cuda", (world // 4, 4), mesh_dim_names=("replicate", "shard"))
    net = model()
    for block in net:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return train(net)


def tp(rank: int, world: int) -> dict[str, float]:
    mesh = init_device_mesh("cuda", (world // 4, 4), mesh_dim_names=("dp", "tp"))
    net = model()
    for block in net:
        parallelize_module(block, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(net, mesh=mesh["dp"])
    return train(net)


def symmetric(rank: int, world: int) -> dict[str, float]:
    """Pairs of ranks map each other's memory for products next to their communication; the others add up what comes."""
    mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    name = mesh["tp"].get_group().group_name
    shard, first, second = (
        torch.randn(*size, device="cuda", dtype=torch.bfloat16)
        for size in ((4096, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH))
    )
    times = []
    for _ in range(4):
        torch.cuda.synchronize()
        began = time.perf_counter_ns()
        _, (wide,) = torch.ops.symm_mem.fused_all_gather_matmul(shard, [first], 0, name)
        out = torch.ops.symm_mem.fused_matmul_reduce_scatter(wide, second, "sum", 0, name)
        dist.all_reduce(out, group=mesh["dp"].get_group())
        torch.cuda.synchronize()
        times.append(time.perf_counter_ns() - began)
    return {"step_ns": times[-1], "peak": torch.cuda.max_memory_allocated()}


def pp(rank: int, world: int) -> dict[str, float]:
    """A stage for each host, sharded over its ranks; 1F1B with four micro-batches."""
    stages = int(os.environ["GROUP_WORLD_SIZE"])
    mesh = init_device_mesh("cuda", (stages, world // stages), mesh_dim_names=("pp", "dp"))
    stage, pipe = mesh["pp"].get_local_rank(), mesh["pp"].get_group()
    net = model(2)
    for block in net:
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(net, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, foreach=True)
    part = PipelineStage(net, stage, stages, torch.device("cuda"), group=pipe)
    schedule = Schedule1F1B(part, 4 if stages < 5 else 8, loss_fn=lambda out, _: out.sum())
    times = []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        began = time.perf_counter_ns()
        data = torch.randn(2048, WIDTH, device="cuda", dtype=torch.bfloat16)
        schedule.step(*([data] if stage == 0 else []), target=data if stage == stages - 1 else None)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        times.append(time.perf_counter_ns() - began)
    return {"step_ns": statistics.median(times), "peak": torch.cuda.max_memory_allocated()}


def parts(rank: int, world: int) -> dict[str, float]:
    """A long buffer of parameters. Each rank updates the pieces in its part, as distributed optimizers do; the sixth of
    eight has most."""
    sizes = [WIDTH * WIDTH] * 21 + [WIDTH] * 50 + [WIDTH * WIDTH] * 10
    part = -(-sum(sizes) // world)
    flat, gradients = torch.zeros(world * part, device="cuda"), torch.zeros(world * part, device="cuda")
    borders = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
    kept = [nn.Parameter(flat[first:behind]) for first, behind in pairwise(borders)]
    begin, end = rank * part, (rank + 1) * part
    pieces = [(max(first, begin), min(behind, end)) for first, behind in pairwise(borders)]
    pieces = [(first, behind) for first, behind in pieces if first < behind]
    mine, times = torch.zeros(part, device="cuda"), []
    for _ in range(4):
        torch.cuda.synchronize()
        began = time.perf_counter_ns()
        dist.reduce_scatter_tensor(mine, gradients)
        for first, behind in pieces:
            flat[first:behind].mul_(0.9).add_(mine[first - begin : behind - begin], alpha=-1e-4)
        dist.all_gather_into_tensor(flat, flat[begin:end])
        torch.cuda.synchronize()
        times.append(time.perf_counter_ns() - began)
    assert len(kept) == len(sizes)
    return {"step_ns": times[-1], "peak": torch.cuda.max_memory_allocated()}


def exchange(rank: int, world: int) -> dict[str, float]:
    """Ranks exchange the same values as on a cluster."""
    total = torch.tensor([rank, 1], device="cuda")
    dist.all_reduce(total)
    assert total.tolist() == [world * (world - 1) // 2, world]
    most = torch.tensor([rank * 3 + 1], device="cuda")
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    assert most.item() == 3 * (world - 1) + 1
    numbers = [torch.empty(2, dtype=torch.int32, device="cuda") for _ in range(world)]
    dist.all_gather(numbers, torch.tensor([5 * rank + 200, 7], dtype=torch.int32, device="cuda"))
    assert [n.tolist() for n in numbers] == [[5 * r + 200, 7] for r in range(world)]
    objects: list[object] = [None] * world
    mine = {"rank": rank, "size": 1 << 40, "ports": [rank * 100, -rank], "name": "worker", "ok": True}
    dist.all_gather_object(objects, mine)
    assert objects == [{**mine, "rank": r, "ports": [r * 100, -r]} for r in range(world)]
    from_first: list[object] = [{"seed": 42} if rank == 0 else None]
    dist.broadcast_object_list(from_first, src=0)
    assert from_first == [{"seed": 42}]
    dist.barrier()
    host = dist.new_group(backend="gloo")
    flags = torch.tensor([1, 5])
    dist.all_reduce(flags, group=host)
    assert flags.tolist() == [world, 5 * world] and dist.get_world_size(host) == world
    words: list[object] = [None] * world
    dist.all_gather_object(words, {"version": 3}, group=host)
    assert words == [{"version": 3}] * world
    reported = [{"rank": rank}]
    dist.broadcast_object_list(reported, src=0, group=host)
    assert reported == [{"rank": 0}]
    dist.barrier(group=host)
    try:
        dist.new_group(backend="cpu:gloo,cuda:nccl")
    except Exception as error:  # phantora's own, of which a script knows nothing
        assert "a process group of gloo and NCCL together cannot be folded" in str(error)
    else:
        raise AssertionError("half a group folds")
    return {"world": dist.get_world_size()}


def meshes(rank: int, world: int) -> dict[str, float]:
    """A mesh of many groups; then its pairs again, by the mesh and one by one."""
    first = c10d._world.group_count
    mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    assert c10d._world.group_count == first + 2 + world // 2
    names = [int(mesh[axis].get_group().group_name) - first for axis in ("dp", "tp")]
    assert names == [rank % 2, 2 + rank // 2]
    total = torch.ones(1, device="cuda")
    dist.all_reduce(total, group=mesh["tp"].get_group())
    assert total.item() == 2
    began = time.perf_counter_ns()
    mesh._init_one_process_group(mesh._layout[1], mesh._rank_map, "tp", (None, None))
    took = time.perf_counter_ns() - began
    began = time.perf_counter_ns()
    for pair in range(world // 2):
        if pair != rank // 2:
            dist.new_group([2 * pair, 2 * pair + 1])
    return {"mesh_ns": took, "groups_ns": time.perf_counter_ns() - began}


def other_shapes(rank: int, world: int) -> dict[str, float]:
    rows = 96 if rank == ODD else 64
    torch.randn(rows, WIDTH, device="cuda") @ torch.randn(WIDTH, WIDTH, device="cuda")
    dist.barrier()
    return {}


def other_object(rank: int, world: int) -> dict[str, float]:
    objects: list[object] = [None] * world
    dist.all_gather_object(objects, {"name": "odd" if rank == ODD else "even"})
    return {}


def uneven_numbers(rank: int, world: int) -> dict[str, float]:
    numbers = [torch.empty(1, dtype=torch.int64, device="cuda") for _ in range(world)]
    dist.all_gather(numbers, torch.tensor([rank * rank], device="cuda"))
    torch.cuda.synchronize()
    return {"first": numbers[0].item()}


def skipped_collective(rank: int, world: int) -> dict[str, float]:
    flag = torch.ones(1 << 20, device="cuda")
    if rank != ODD:
        dist.all_reduce(flag)
    torch.cuda.synchronize()
    return {}


def receives_from_folded(rank: int, world: int) -> dict[str, float]:
    data = torch.ones(4, device="cuda")
    ring = [dist.P2POp(dist.isend, data, (rank + 1) % world), dist.P2POp(dist.irecv, data, (rank - 1) % world)]
    for work in dist.batch_isend_irecv(ring):
        work.wait()
    return {}


def gloo(rank: int, world: int) -> dict[str, float]:
    numbers = [torch.empty(1, dtype=torch.int64) for _ in range(world)]
    dist.all_gather(numbers, torch.tensor([rank]), group=dist.new_group(backend="gloo"))
    return {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode")
    mode = parser.parse_args().mode
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    found = globals()[mode](dist.get_rank(), dist.get_world_size())
    print(json.dumps({"rank": dist.get_rank(), **found}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Times NCCL on one host: device time of each collective in CUDA graphs, and the memory of communicators.

torchrun --nproc-per-node 8 validation/one_host/collectives.py

Rank 0 prints a JSON line per operation and size: `bytes` is the size of the larger buffer of a rank, `us` the median
time of one operation in microseconds. A line named ``communicator`` has the bytes that `ranks` ranks' new group takes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
from collections.abc import Callable

import torch
import torch.distributed as dist

Operation = Callable[[torch.Tensor, torch.Tensor], object]


def exchange(sent: torch.Tensor, received: torch.Tensor, to: int, source: int) -> None:
    """Sends to one rank and receives from another as one group."""
    calls = [dist.P2POp(dist.isend, sent, to), dist.P2POp(dist.irecv, received, source)]
    for work in dist.batch_isend_irecv(calls):
        work.wait()


def operations(rank: int, world: int, second: dist.ProcessGroup) -> dict[str, Operation]:
    """Each operation by name; `x` and `y` have the same size, a multiple of the ranks."""
    side = torch.cuda.Stream()

    def two_groups(x: torch.Tensor, y: torch.Tensor) -> None:
        side.wait_stream(torch.cuda.current_stream())
        dist.all_reduce(x)
        with torch.cuda.stream(side):
            dist.all_reduce(y, group=second)
        torch.cuda.current_stream().wait_stream(side)

    return {
        "all_reduce": lambda x, y: dist.all_reduce(x),
        "all_gather": lambda x, y: dist.all_gather_into_tensor(y, x[: x.numel() // world]),
        "reduce_scatter": lambda x, y: dist.reduce_scatter_tensor(y[: y.numel() // world], x),
        "broadcast": lambda x, y: dist.broadcast(x, 0),
        "reduce": lambda x, y: dist.reduce(x, 0),
        "all_to_all": lambda x, y: dist.all_to_all_single(y, x),
        "ring": lambda x, y: exchange(x, y, (rank + 1) % world, (rank - 1) % world),
        "pairs": lambda x, y: exchange(x, y, rank ^ 1, rank ^ 1),
        "two_all_reduces": two_groups,
    }


def time_of(operation: Operation, x: torch.Tensor, y: torch.Tensor, times: int) -> float:
    """Median device time of one `operation` in us, from 9 replays of a graph of `times` operations."""
    for _ in range(3):
        operation(x, y)
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(times):
            operation(x, y)
    graph.replay()
    torch.cuda.synchronize()
    dist.barrier()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(10)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    between = [first.elapsed_time(then) for first, then in itertools.pairwise(marks)]
    return statistics.median(between) * 1e3 / times


def memory_of_group(ranks: list[int]) -> int:
    """Bytes of GPU memory that a new communicator of `ranks` takes on this rank, 0 outside the group."""
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    group = dist.new_group(ranks)
    if dist.get_rank() not in ranks:
        return 0
    dist.all_reduce(torch.ones(1, device="cuda"), group=group)
    torch.cuda.synchronize()
    return before - torch.cuda.mem_get_info()[0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--most", type=int, default=1 << 32, help="largest buffer in bytes")
    args = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    dist.all_reduce(torch.ones(1, device=device))

    def report(**row: object) -> None:
        if rank == 0:
            print(json.dumps(row), flush=True)

    size = 2
    while size <= world:
        for _ in range(2):
            taken = memory_of_group(list(range(size)))
            report(name="communicator", ranks=size, bytes=taken)
        size *= 2
    second = dist.new_group(list(range(world)))
    x = torch.rand(args.most // 4, device=device).view(torch.bfloat16)
    y = torch.zeros_like(x)
    for name, operation in operations(rank, world, second).items():
        nbytes = 1 << 10
        while nbytes <= args.most:
            count = nbytes // 2 // world * world
            times = 20 if nbytes <= 1 << 22 else 8 if nbytes <= 1 << 26 else 2
            us = time_of(operation, x[:count], y[:count], times)
            report(name="collective", op=name, gpus=world, bytes=2 * count, us=round(us, 3))
            nbytes *= 4
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

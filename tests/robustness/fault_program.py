"""Program of `faults.py`, `determinism.py` and `long_runs.py`: a small FSDP2 model and a DataLoader with a worker.

    phantora trace --cluster 2 -m tests.robustness.fault_program [--steps N] [--workers N] [--layers N] [--kernels N]
    [--sgd]

It prints a line every ten steps.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset

WIDTH = 256


class Rows(Dataset[torch.Tensor]):
    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((WIDTH,), float(index))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--workers", type=int, default=1, help="of each rank's DataLoader")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--kernels", type=int, default=400, help="small ones in a step: they fill the log")
    parser.add_argument("--sgd", action="store_true", help="lists of DTensors, as AdamW has, leave objects behind")
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(args.layers))).cuda()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    if args.sgd:
        optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)
    counter = torch.zeros(4096, device="cuda")
    loader = DataLoader(Rows(4 * args.steps), batch_size=4, num_workers=args.workers)
    for index, batch in enumerate(loader):
        loss = model(batch.cuda(non_blocking=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        for _ in range(args.kernels):
            counter.add_(1)
        if index % 10 == 9:
            print(f"step {index + 1} loss {loss.item():.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

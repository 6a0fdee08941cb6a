"""DDP with no_sync over micro-batches, clipped gradients, AdamW; one reduced metric each step."""
import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from validation.calibration.programs.blocks import Decoder
from validation.calibration.programs.common import Step, main, setup


def build(layers: int, batch: int, seq: int, dim: int, micro: int) -> Step:
    model = DistributedDataParallel(Decoder(layers, dim, dim // 64).cuda(), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, 8192, (batch, seq + 1), device="cuda")

    def step() -> None:
        total = torch.zeros((), device="cuda")
        for i in range(micro):
            with model.no_sync() if i + 1 < micro else contextlib.nullcontext():
                with torch.autocast("cuda", torch.bfloat16):
                    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()) / micro
                loss.backward()
                total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total, op=dist.ReduceOp.AVG)

    return step


setup()
main("ddp", build, {
    "base": dict(layers=6, batch=4, seq=256, dim=512, micro=2), "deep": dict(layers=16, batch=4, seq=256, dim=512, micro=2),
    "many": dict(layers=6, batch=2, seq=256, dim=512, micro=6), "two": dict(layers=10, batch=4, seq=512, dim=512, micro=1),
})

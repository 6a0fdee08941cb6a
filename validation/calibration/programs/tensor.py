"""Tensor parallelism by DTensor (column and row, optionally sequence parallel), AdamW by loops over parameters."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from validation.calibration.programs.blocks import Decoder
from validation.calibration.programs.common import Step, main, setup


def build(layers: int, batch: int, seq: int, dim: int, sequence: bool) -> Step:
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    model = Decoder(layers, dim, dim // 64).cuda()
    if sequence:
        row = RowwiseParallel(output_layouts=Shard(1))
        plan = {
            "norm1": SequenceParallel(), "norm2": SequenceParallel(),
            "attention": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
            "feed": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
        }
        outer = {
            "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        }
    else:
        row, plan = RowwiseParallel(), {}
        outer = {"head": ColwiseParallel(output_layouts=Replicate())}
    for name in ("attention.wq", "attention.wk", "attention.wv", "feed.w1", "feed.w3"):
        plan[name] = ColwiseParallel()
    for name in ("attention.wo", "feed.w2"):
        plan[name] = row
    for layer in model.layers:
        parallelize_module(layer, mesh, plan)
    parallelize_module(model, mesh, outer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    ids = torch.randint(0, 8192, (batch, seq + 1), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


setup()
main("tensor", build, {
    "base": dict(layers=3, batch=4, seq=256, dim=512, sequence=False), "deep": dict(layers=9, batch=4, seq=256, dim=512, sequence=False),
    "sequence": dict(layers=3, batch=4, seq=256, dim=512, sequence=True), "two": dict(layers=4, batch=2, seq=512, dim=768, sequence=False),
})

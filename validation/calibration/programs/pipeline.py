"""Pipeline parallelism by torch.distributed.pipelining: GPipe or 1F1B, one stage a rank."""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from validation.calibration.programs.blocks import Block
from validation.calibration.programs.common import Step, main, setup


class Part(nn.Module):
    def __init__(self, first: bool, last: bool, layers: int, dim: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(8192, dim) if first else None
        self.layers = nn.ModuleList(Block(dim, dim // 64) for _ in range(layers))
        self.head = nn.Linear(dim, 8192, bias=False) if last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embed is not None:
            x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x) if self.head is not None else x


def build(layers: int, batch: int, seq: int, dim: int, micro: int, schedule: type[PipelineScheduleSingle]) -> Step:
    rank, world = dist.get_rank(), dist.get_world_size()
    part = Part(rank == 0, rank == world - 1, layers, dim).cuda()
    stage = PipelineStage(part, rank, world, torch.device("cuda", torch.cuda.current_device()))
    plan = schedule(stage, micro, loss_fn=lambda out, want: F.cross_entropy(out.flatten(0, 1), want.flatten()))
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4)
    ids = torch.randint(0, 8192, (batch, seq), device="cuda")

    def step() -> None:
        if rank == 0:
            plan.step(ids)
        elif rank == world - 1:
            plan.step(target=ids)
        else:
            plan.step()
        optimizer.step()
        optimizer.zero_grad()

    return step


setup()
main("pipeline", build, {
    "base": dict(layers=2, batch=8, seq=256, dim=512, micro=4, schedule=Schedule1F1B),
    "deep": dict(layers=5, batch=8, seq=256, dim=512, micro=4, schedule=Schedule1F1B),
    "gpipe": dict(layers=2, batch=16, seq=256, dim=512, micro=8, schedule=ScheduleGPipe),
    "two": dict(layers=4, batch=8, seq=512, dim=512, micro=4, schedule=Schedule1F1B),
})

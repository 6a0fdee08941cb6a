"""Training steps of layers of experts on several GPUs: all-to-all, permutation, grouped products. JSON lines.

    torchrun --nproc-per-node 2 -m validation.workloads.moe_two_gpus OUT.jsonl [CASE ...]     # real, or under phantora trace

Tokens go to the ranks that hold their experts and come back (expert parallelism), behind attention whose parameters all
ranks hold. How many tokens each expert gets is given, so that a simulated run has the same: as many for each, or falling
as 1 / sqrt(number of the expert), so that the first rank gets most.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.nn.functional import all_to_all_single

from validation.charges import SIMULATED
from validation.workloads.fp8_moe import profiled
from validation.workloads.timing import row_of, timed

WARM, ITERS = (2, 3) if SIMULATED else (5, 12)
SEQ, HEAD = 4096, 128


@dataclass(frozen=True)
class Case:
    width: int
    wide: int
    """Width of an expert."""
    experts: int
    top: int
    batch: int
    skewed: bool = False
    layers: int = 4


CASES = {
    "deepseek": Case(2048, 1408, 64, 6, 2), "deepseek_skewed": Case(2048, 1408, 64, 6, 2, skewed=True),
    "qwen": Case(2048, 768, 128, 8, 2), "qwen_skewed": Case(2048, 768, 128, 8, 2, skewed=True),
    "mixtral": Case(4096, 14336, 8, 2, 1, layers=2), "mixtral_skewed": Case(4096, 14336, 8, 2, 1, skewed=True, layers=2),
}


def shares(case: Case, tokens: int) -> list[int]:
    """Tokens of each expert, of one rank's; multiples of 8."""
    weights = [1 / (i + 1) ** 0.5 if case.skewed else 1.0 for i in range(case.experts)]
    counts = [int(tokens * weight / sum(weights)) // 8 * 8 for weight in weights]
    counts[0] += tokens - sum(counts)
    return counts


class Layer(nn.Module):
    def __init__(self, case: Case, world: int, rank: int) -> None:
        super().__init__()
        width, self.case = case.width, case
        self.n1, self.n2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, case.experts, bias=False)
        here = case.experts // world
        self.w1 = nn.Parameter(torch.randn(here, width, 2 * case.wide) * 0.02)
        self.w2 = nn.Parameter(torch.randn(here, case.wide, width) * 0.02)
        counts = shares(case, case.batch * SEQ * case.top)
        self.sent = [sum(counts[r * here : (r + 1) * here]) for r in range(world)]
        self.got = [self.sent[rank]] * world  # all ranks send the same counts
        mine = torch.tensor(counts[rank * here : (rank + 1) * here], device="cpu")
        self.ends = (mine * world).cumsum(0).to("cuda", torch.int32)
        # From the order by sender to that by expert.
        by_sender = torch.repeat_interleave(torch.arange(here, device="cpu"), mine).repeat(world)
        self.order = torch.argsort(by_sender, stable=True).cuda()
        self.back = torch.argsort(self.order.cpu()).cuda()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, width = x.shape
        q, k, v = (t.view(b, s, -1, HEAD).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, width))
        h = self.n2(x).view(-1, width)
        weights, chosen = self.gate(h).float().softmax(-1).topk(self.case.top, -1)
        order = torch.argsort(chosen.view(-1), stable=True)
        tokens = h.index_select(0, order // self.case.top)
        there = all_to_all_single(tokens.new_empty(sum(self.got), width), tokens, self.got, self.sent)
        gate, up = torch._grouped_mm(there.index_select(0, self.order), self.w1, self.ends).chunk(2, -1)
        y = torch._grouped_mm(F.silu(gate) * up, self.w2, self.ends).index_select(0, self.back)
        home = all_to_all_single(y.new_empty(sum(self.sent), width), y, self.sent, self.got)
        home = home * weights.view(-1).index_select(0, order).to(y.dtype)[:, None]
        return x + torch.zeros_like(h).index_add(0, order // self.case.top, home).view_as(x)


def steps(case: Case, world: int, rank: int) -> Callable[[], None]:
    torch.manual_seed(rank)
    with torch.device("cuda"):
        model = nn.Sequential(*(Layer(case, world, rank) for _ in range(case.layers))).to(torch.bfloat16)
        x = torch.randn(case.batch, SEQ, case.width, dtype=torch.bfloat16)
        target = torch.randn_like(x)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    common = [p for name, p in model.named_parameters() if "w1" not in name and "w2" not in name]

    def step() -> None:
        F.mse_loss(model(x).float(), target.float()).backward()
        for p in common:
            dist.all_reduce(p.grad)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def run(name: str) -> dict[str, Any]:
    world, rank = dist.get_world_size(), dist.get_rank()
    step = steps(CASES[name], world, rank)

    def together() -> None:
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()

    row = row_of(f"moe_{name}_{world}gpus", timed(step, WARM, ITERS, together), name="moe_two_gpus")
    if not SIMULATED:
        row["kernels"] = profiled(step)
    return row


def main() -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    for name in sys.argv[2:] or CASES:
        row = run(name)
        if dist.get_rank() == 0:
            with open(sys.argv[1], "a", encoding="utf-8") as file:
                print(json.dumps(row), file=file)
            print(json.dumps(row), flush=True)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Training steps with float8 linear layers and with grouped experts, one GPU, and the GPU time of each kernel. JSON lines.

    python -m validation.workloads.fp8_moe OUT.jsonl [CASE ...]     # real, or under phantora trace

Cases: fp8_tensorwise, fp8_rowwise (eager), their `_compiled` forms, bf16_compiled next to them; moe (8 of 64 experts,
permutation and grouped products), moe_skewed (tokens fall off as 1/rank), moe_compiled. `fresh`: layers of other models.
Needs torchao for fp8.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

from validation.charges import SIMULATED
from validation.workloads.timing import row_of

WARM, ITERS = (2, 3) if SIMULATED else (5, 10)
WIDTH, BATCH, SEQ = 4096, 2, 2048


class Block(nn.Module):
    """A Llama layer, of 8 B by default."""

    def __init__(self, width: int = WIDTH, wide: int = 14336) -> None:
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.wq, self.wo = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.wk, self.wv = nn.Linear(width, width // 4, bias=False), nn.Linear(width, width // 4, bias=False)
        self.w1, self.w3 = nn.Linear(width, wide, bias=False), nn.Linear(width, wide, bias=False)
        self.w2 = nn.Linear(wide, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.n1(x)
        b, s, _ = h.shape
        q, k, v = (w(h).view(b, s, -1, 128).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.wo(a.transpose(1, 2).reshape(b, s, -1))
        h = self.n2(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class Experts(nn.Module):
    """Experts of Qwen3 30B-A3B: 8 experts a token of 128, here of 64; their tokens follow one another."""

    def __init__(self, skewed: bool, width: int = 2048, wide: int = 768, experts: int = 64, top: int = 8) -> None:
        super().__init__()
        self.norm, self.gate, self.top = nn.RMSNorm(width), nn.Linear(width, experts, bias=False), top
        self.w1 = nn.Parameter(torch.randn(experts, width, 2 * wide) * 0.02)
        self.w2 = nn.Parameter(torch.randn(experts, wide, width) * 0.02)
        tokens = BATCH * SEQ * top
        share = torch.tensor([1 / (i + 1) ** 0.5 if skewed else 1.0 for i in range(experts)], device="cpu")
        counts = (share / share.sum() * tokens).long() // 8 * 8
        counts[0] += tokens - counts.sum()
        self.ends = counts.cumsum(0).to("cuda", torch.int32)  # given, so that a simulated run has the same

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x).view(-1, x.shape[-1])
        weights, chosen = self.gate(h).float().softmax(-1).topk(self.top, -1)
        order = torch.argsort(chosen.view(-1), stable=True)
        tokens = h.index_select(0, order // self.top)
        gate, up = torch._grouped_mm(tokens, self.w1, self.ends).chunk(2, -1)
        y = torch._grouped_mm(F.silu(gate) * up, self.w2, self.ends)
        y = y * weights.view(-1).index_select(0, order).to(y.dtype)[:, None]
        return x + torch.zeros_like(h).index_add(0, order // self.top, y).view_as(x)


def blocks(make: Callable[[], nn.Module], layers: int) -> nn.Sequential:
    with torch.device("cuda"):
        return nn.Sequential(*(make() for _ in range(layers))).to(torch.bfloat16)


def build(case: str) -> tuple[nn.Module, int]:
    """The model and its width."""
    if case.startswith("moe"):
        kind = next((kind for kind in EXPERTS if kind in case), "")
        width, wide, experts, top = EXPERTS.get(kind, (2048, 768, 64, 8))
        return blocks(lambda: Experts("skewed" in case, width, wide, experts, top), 4), width
    width, wide = next((sizes for kind, sizes in DENSE.items() if kind in case), (WIDTH, 14336))
    model = blocks(lambda: Block(width, wide), 4)
    if case.startswith("fp8"):
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        way = "rowwise" if "rowwise" in case else "tensorwise"
        convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name(way))
    return model, width


# Width, width of an expert, experts, experts of a token; width and width within.
EXPERTS = {"deepseek": (2048, 1408, 64, 6), "qwen": (2048, 768, 128, 8), "mixtral": (4096, 14336, 8, 2)}
DENSE = {"70b": (8192, 28672), "mistral": (5120, 14336), "13b": (5120, 13824)}
FRESH = (
    "moe_deepseek", "moe_deepseek_skewed", "moe_deepseek_compiled", "moe_qwen", "moe_qwen_compiled", "moe_mixtral",
    "fp8_tensorwise_70b_compiled", "fp8_rowwise_70b_compiled", "fp8_tensorwise_mistral", "fp8_rowwise_mistral_compiled",
)
CASES = ("bf16_compiled", "fp8_tensorwise", "fp8_tensorwise_compiled", "fp8_rowwise", "fp8_rowwise_compiled", "moe", "moe_skewed", "moe_compiled")


def profiled(step: Callable[[], None]) -> list[list[Any]]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step()
        step()
        torch.cuda.synchronize()
    return [[row.key[:120], row.count / 2, round(row.self_device_time_total / 2, 2)] for row in seen.key_averages() if row.self_device_time_total > 0]


def run(case: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model: Any
    model, width = build(case)
    if case.endswith("compiled"):
        for i, block in enumerate(model):
            model[i] = torch.compile(block)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    x = torch.randn(BATCH, SEQ, width, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        model(x).float().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    times = []
    for turn in range(WARM + ITERS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.profiler.record_function(case if turn == WARM + ITERS - 1 else "step"):
            step()
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    row = row_of(case, times[WARM:], name="fp8_moe")
    if SIMULATED:
        print(json.dumps(row), flush=True)
    else:
        row["kernels"] = profiled(step)
    return row


def main() -> None:
    for case in FRESH if sys.argv[2:] == ["fresh"] else sys.argv[2:] or CASES:
        begin = time.monotonic()
        try:
            row = run(case)
        except (RuntimeError, ValueError, TypeError, ImportError) as error:
            row = {"run_id": case, "error": f"{type(error).__name__}: {error}"[:400]}
        with open(sys.argv[1], "a", encoding="utf-8") as file:
            print(json.dumps(row), file=file)
        print(f"{case}: {row.get('median_iter_s', 0) * 1e3:.2f} ms {row.get('error', '')} ({time.monotonic() - begin:.1f} s)", flush=True)
        gc.collect()
        torch.compiler.reset()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()

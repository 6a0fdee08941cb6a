"""GRPO with drawn lengths, as samples/grpo.py: torchrun --nproc-per-node N grpo_phases.py OUT NAME [--generators 1] [--cache].

The script draws the length of each completion from its own generator, the same on a GPU and simulated, and ends the
completion there. Seconds of each phase after a synchronisation, peak memory of each step.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

Cache = tuple[torch.Tensor, torch.Tensor]

END = 1


class Block(nn.Module):
    def __init__(self, d: int, h: int) -> None:
        super().__init__()
        self.h = h
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.w1, self.w3, self.w2 = nn.Linear(d, 4 * d, bias=False), nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)
        self.n1, self.n2 = nn.RMSNorm(d), nn.RMSNorm(d)

    def forward(self, x: torch.Tensor, cache: Cache | None = None, at: int = 0) -> torch.Tensor:
        b, s, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, s, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        if cache is not None:
            cache[0][:, :, at : at + s], cache[1][:, :, at : at + s] = k, v
            k, v = cache[0][:, :, : at + s], cache[1][:, :, : at + s]
        a = F.scaled_dot_product_attention(q, k, v, is_causal=s > 1)
        x = x + self.o(a.transpose(1, 2).reshape(b, s, d))
        n = self.n2(x)
        return x + self.w2(F.silu(self.w1(n)) * self.w3(n))


class Decoder(nn.Module):
    def __init__(self, vocab: int, d: int, layers: int) -> None:
        super().__init__()
        self.d, self.heads = d, d // 128
        self.embedding = nn.Embedding(vocab, d)
        self.layers = nn.ModuleList(Block(d, d // 128) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(d), nn.Linear(d, vocab, bias=False)

    def forward(self, tokens: torch.Tensor, caches: list[Cache] | None = None, at: int = 0, last: bool = False) -> torch.Tensor:
        x = self.embedding(tokens)
        for i, layer in enumerate(self.layers):
            x = layer(x, caches[i] if caches else None, at)
        return self.head(self.norm(x[:, -1:] if last else x))


@torch.no_grad()
def generate(model: Decoder, prompts: torch.Tensor, lengths: torch.Tensor, cache: bool) -> torch.Tensor:
    """Completions padded to the longest, with END from each length on."""
    b, p = prompts.shape
    tokens, done = prompts, torch.zeros(b, dtype=torch.bool, device="cuda")
    caches: list[Cache] | None = None
    if cache:
        shape = (b, model.heads, p + max(lengths.tolist()), model.d // model.heads)
        caches = [(torch.empty(shape, dtype=torch.bfloat16, device="cuda"), torch.empty(shape, dtype=torch.bfloat16, device="cuda")) for _ in model.layers]
    given = lengths.to("cuda")
    i = 0
    while True:
        if caches:
            logits = model(tokens if not i else tokens[:, -1:], caches, 0 if not i else p + i - 1, last=True)
        else:
            logits = model(tokens, last=True)
        chosen = torch.multinomial(F.softmax(logits[:, -1].float(), -1), 1)[:, 0]
        i += 1
        chosen = torch.where(given <= i, END, chosen)
        tokens = torch.cat([tokens, chosen[:, None]], 1)
        done = given <= i
        if bool(done.all()):
            return tokens


def log_probabilities(model: nn.Module, tokens: torch.Tensor, begin: int) -> torch.Tensor:
    logits = model(tokens)[:, begin - 1 : -1]
    return -F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, begin:].flatten(), reduction="none").view(len(tokens), -1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("name")
    for name, default in (("dim", 2048), ("layers", 8), ("vocab", 32000), ("prompts", 8), ("group", 8), ("prompt", 128), ("steps", 5), ("longest", 96), ("generators", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--cache", action="store_true")
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    torch.backends.cuda.enable_cudnn_sdp(False)
    rank, world, apart = dist.get_rank(), dist.get_world_size(), args.generators
    trainers = dist.new_group(list(range(apart, world)))
    torch.manual_seed(1234)
    with torch.device("cuda"):
        model = Decoder(args.vocab, args.dim, args.layers).bfloat16()
        reference: Any = Decoder(args.vocab, args.dim, args.layers).bfloat16() if rank >= apart else None
        rollout = Decoder(args.vocab, args.dim, args.layers).bfloat16() if not apart else model
    trains, generates = rank >= apart, not apart or rank < apart
    wrapped: Any = nn.parallel.DistributedDataParallel(model, process_group=trainers) if trains else None
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True) if trains else None
    draw = random.Random(7 + (0 if apart else rank))
    sequences = args.prompts * args.group
    steps: list[dict[str, Any]] = []

    def now() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    for _ in range(args.steps):
        lengths = torch.tensor([min(args.longest, max(1, round(24 * math.exp(0.5 * draw.gauss(0, 1))))) for _ in range(sequences)])
        longest = int(lengths.max())
        torch.cuda.reset_peak_memory_stats()
        dist.barrier()
        phases: dict[str, float] = {}
        began = at = now()

        def ended(phase: str, phases: dict[str, float] = phases) -> None:
            nonlocal at
            phases[phase], at = now() - at, now()
        prompts = torch.randint(2, args.vocab, (args.prompts, args.prompt), device="cuda").repeat_interleave(args.group, 0)
        if generates:
            tokens = generate(rollout, prompts, lengths, args.cache)
            ended("generate")
        if apart:
            tokens = tokens if generates else torch.empty(sequences, args.prompt + longest, dtype=torch.long, device="cuda")
            dist.broadcast(tokens, 0)
            ended("send")
        if trains:
            with torch.no_grad():
                old, ref = log_probabilities(model, tokens, args.prompt), log_probabilities(reference, tokens, args.prompt)
                rewards = (tokens[:, args.prompt :] != END).sum(1).float().view(-1, args.group)
                advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()[:, None]
            ended("score")
            ratio = (log_probabilities(wrapped, tokens, args.prompt) - old).exp()
            loss = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
            loss = loss + 0.04 * (old - ref).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            ended("train")
        if apart:
            for parameter in model.parameters():
                dist.broadcast(parameter.data, apart)
        else:
            with torch.no_grad():
                for to, parameter in zip(rollout.parameters(), model.parameters(), strict=True):
                    to.copy_(parameter)
        ended("sync")
        steps.append({"step": now() - began, "longest": longest, "tokens": int(lengths.sum()), "peak": torch.cuda.max_memory_allocated(), **phases})
    with open(f"{args.out}/{args.name}.{rank}.json", "w") as file:
        json.dump({"job": args.name, "rank": rank, "world": world, "peak": max(s["peak"] for s in steps), "times": steps}, file)
    if rank == 0:
        print(args.name, [round(s["step"], 4) for s in steps], flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Host-bound workloads with their CUDA calls and without, in turns, so that both meet the same host. JSON lines.

    taskset -c 4,6 python -m validation.probes.host_pairs OUT.jsonl [ROUNDS]

Starts itself twice: with the real libraries, and under `phantora trace --null`, whose stubs do nothing. The two take
turns, workload by workload. On the same two cores, as `taskset` has it, both meet the same speed. A turn is two steps, of which the second counts, or one row
of the probe (phantora/profile/host_probe.py). OUT has a row for each: its times with CUDA's calls (`iter_times`, s) and
its times and CPU times without (`null_times`, `null_cpu_times`); rows of the probe in ns per call.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from phantora.profile import host_probe
from phantora.profile.alternation import Turns, new_turns
from phantora.run_process import PHANTORA
from validation.workloads.host_libraries import LIBRARIES
from validation.workloads.host_runs import WORKLOADS, Step, trained, words
from validation.workloads.host_unseen import UNSEEN

ROOT = Path(__file__).resolve().parents[2]

REAL, NULL = 0, 1
LEFT_OUT = ("retries", "decode")  # memory for itself; half a second a step
WARM = 3  # rounds


# ---------------------------------------------------------------------- workloads that no earlier session had


def bert() -> Step:
    """Fine-tuning with short sequences."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(hidden_size=512, num_hidden_layers=8, num_attention_heads=8, intermediate_size=2048)
    model = BertForSequenceClassification(config).cuda().train()
    ids, labels = words(8, 64, 30000), torch.randint(2, (8,), device="cuda")
    return trained(model, lambda: model(input_ids=ids, labels=labels).loss, amp=True, clip=True)


def translate() -> Step:
    """torch's own encoder and decoder."""
    model = nn.Transformer(256, 4, 3, 3, 1024, batch_first=True).cuda()
    source, target = torch.randn(8, 48, 256, device="cuda"), torch.randn(8, 48, 256, device="cuda")
    return trained(model, lambda: F.mse_loss(model(source, target), target))


def vision(name: str, batch: int) -> Callable[[], Step]:
    """Channels last, autocast."""
    def build() -> Step:
        import torchvision.models as models

        model = getattr(models, name)(weights=None).cuda().to(memory_format=torch.channels_last)
        x = torch.randn(batch, 3, 160, 160, device="cuda").to(memory_format=torch.channels_last)
        y = torch.randint(1000, (batch,), device="cuda")
        return trained(model, lambda: F.cross_entropy(model(x).float(), y), amp=True, fused=False)

    return build


def experts() -> Step:
    """A mixture of experts, each called by a loop over those that have tokens."""
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(256, 8, bias=False)
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(256, 512), nn.SiLU(), nn.Linear(512, 256)) for _ in range(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weights, _ = self.gate(x).softmax(-1).topk(2, -1)
            out = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                tokens = torch.arange(number, len(x), 4, device=x.device)  # as many as evenly routed ones
                out.index_add_(0, tokens, expert(x[tokens]) * weights[tokens, :1])
            return out + x

    model = nn.Sequential(*(Layer() for _ in range(6))).cuda()
    x = torch.randn(512, 256, device="cuda")
    return trained(model, lambda: model(x).square().mean())


def graph_net() -> Step:
    """Messages along the edges of a graph."""
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.edge, self.node = nn.Linear(128, 64), nn.Linear(128, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            message = F.relu(self.edge(torch.cat([x[source], x[goal]], -1)))
            received = torch.zeros_like(x).index_add(0, goal, message)
            return F.layer_norm(x + F.relu(self.node(torch.cat([x, received], -1))), (64,))

    source, goal = torch.randint(500, (4000,), device="cuda"), torch.randint(500, (4000,), device="cuda")
    model = nn.Sequential(*(Layer() for _ in range(10))).cuda()
    x = torch.randn(500, 64, device="cuda")
    return trained(model, lambda: model(x).square().mean(), clip=True)


def two_optimizers() -> Step:
    """A generator and a critic, each with its optimizer."""
    def net(into: int, out: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(into, 256), nn.LeakyReLU(), nn.Linear(256, 256), nn.LeakyReLU(), nn.Linear(256, out)).cuda()

    maker, critic = net(64, 784), net(784, 1)
    first, second = (torch.optim.Adam(model.parameters(), 2e-4) for model in (maker, critic))
    real = torch.randn(64, 784, device="cuda")

    def step() -> None:
        for _ in range(3):
            made = maker(torch.randn(64, 64, device="cuda"))
            loss = F.softplus(-critic(real)).mean() + F.softplus(critic(made.detach())).mean()
            second.zero_grad()
            loss.backward()
            second.step()
            first.zero_grad()
            F.softplus(-critic(made)).mean().backward()
            first.step()

    return step


FRESH: dict[str, Callable[[], Step]] = {
    "bert": bert, "translate": translate, "resnet": vision("resnet50", 4), "convnext": vision("convnext_tiny", 4),
    "mobilenet": vision("mobilenet_v3_small", 16), "experts": experts, "graph_net": graph_net, "two_optimizers": two_optimizers,
}
KNOWN = {**WORKLOADS, **FRESH, **UNSEEN, **LIBRARIES}


# ---------------------------------------------------------------------- turns


Timed = tuple[str, float, float]  # name, time, CPU time of all threads


def in_turns(out: str, turns: Turns, rounds: int, works: Sequence[Callable[[], list[Timed]]]) -> None:
    """Each of `works` is what one turn does."""
    times: dict[str, tuple[list[float], list[float]]] = {}
    for turn in range(-WARM, rounds):
        for work in works:
            turns.wait()
            timed = work()
            turns.done()
            for name, spent, worked in timed if turn >= 0 else ():
                elapsed, cpu = times.setdefault(name, ([], []))
                elapsed.append(spent)
                cpu.append(worked)
    Path(out).write_text(json.dumps({"times": times, "machine": host_probe.machine()}))


def meet() -> None:
    """The other ranks, where there are any."""
    torch.cuda.synchronize()
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.barrier()
        torch.cuda.synchronize()


def second_step(name: str, step: Step) -> list[Timed]:
    step()
    meet()
    cpu, begin = time.process_time(), time.perf_counter()
    step()
    torch.cuda.synchronize()
    spent, worked = time.perf_counter() - begin, time.process_time() - cpu
    return [(name, round(spent, 7), round(worked, 7))]


def probed(rows: Sequence[host_probe.Row]) -> list[Timed]:
    return [(f"{row.kind}:{row.name}", *host_probe.timed(row)) for row in rows]


def take_part(out: str, path: str, role: int, rounds: int) -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(0)
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29523 + role), "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
        os.environ.setdefault(name, value)
    rows = host_probe.all_rows()
    steps = {name: build() for name, build in KNOWN.items() if name not in LEFT_OUT}
    in_turns(out, Turns(path, role), rounds, [*(partial(second_step, *step) for step in steps.items()), partial(probed, rows)])


def main() -> None:
    if len(sys.argv) > 4:
        return take_part(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    rounds = sys.argv[2] if len(sys.argv) > 2 else "16"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "turn"
        new_turns(path)
        outs = [Path(folder) / name for name in ("real.json", "null.json")]
        launchers = [[sys.executable], [*PHANTORA, "trace", "--null", "-q", "--cluster", "1x1xH100"]]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        both = [
            subprocess.Popen([*launcher, __file__, str(out), str(path), str(role), rounds], env=environment)
            for role, (launcher, out) in enumerate(zip(launchers, outs, strict=True))
        ]
        statuses = [process.wait() for process in both]
        if any(statuses):
            sys.exit("host_pairs.py: one of the two failed")
        real, null = (json.loads(out.read_text()) for out in outs)
    write(sys.argv[1], real, null)


def write(path: str, real: dict[str, Any], null: dict[str, Any]) -> None:
    with open(path, "a", encoding="utf-8") as file:
        print(json.dumps({"machine": real["machine"]}), file=file)
        for name, (elapsed, _) in real["times"].items():
            without, worked = null["times"][name]
            kind, _, probe = name.partition(":")
            if probe:
                row = {"name": probe, "kind": kind, "ns": elapsed, "null_ns": without, "null_cpu_ns": worked}
            else:
                row = {"run_id": f"host_{name}", "name": "host_pairs", "iter_times": elapsed, "median_iter_s": statistics.median(elapsed),
                       "null_times": without, "null_cpu_times": worked}
            print(json.dumps(row), file=file)


if __name__ == "__main__":
    main()

"""Times of PyTorch's host work on tiny tensors. A script of its own: python host_probe.py OUT ROUNDS [TURNS ROLE].

`phantora.profile.probing` runs it twice: under stub libraries, where a CUDA call costs next to nothing and what is left
is Python, the dispatcher, autograd and the allocator; and, where there is a GPU, with the real libraries. The two take
turns, row by row. A round measures one row after another, so that what disturbs the machine for a while disturbs all
of them, and each is short enough never to fill CUDA's queue. Plain torch. One line of JSON per row: name, what it is
about, ns per call in every round, elapsed and of CPU time. The first line describes the machine.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from phantora.profile.alternation import Turns
from phantora.python_probe import python

NO_GPU = 3  # exit status
WARM = 2  # calls before a round's clock starts


@dataclass(frozen=True)
class Row:
    """Something to be timed."""

    name: str
    kind: str
    """``cpu``: counts for the factor between hosts. ``step``: a training step or part of one; counts too. ``driver``:
    shows what a CUDA call costs."""
    call: Callable[[], object]
    count: int
    """Calls in a round; a round launches fewer kernels than CUDA's queue takes."""


class Block(nn.Module):
    """A Llama decoder layer."""

    def __init__(self, dim: int = 256, ffn: int = 512) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.w1, self.w3 = nn.Linear(dim, ffn, bias=False), nn.Linear(dim, ffn, bias=False)
        self.w2 = nn.Linear(ffn, dim, bias=False)
        self.n1, self.n2 = nn.RMSNorm(dim), nn.RMSNorm(dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, width) to the same shape."""
        h = self.n1(x)
        b, s, _ = h.shape
        q, k, v = (w(h).view(b, s, -1, 64).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(a.transpose(1, 2).reshape(b, s, -1))
        h = self.n2(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class Double(torch.autograd.Function):
    """An autograd function written in Python."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        """Twice the input."""
        return x * 2

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
        """Twice the gradient."""
        return grad * 2


def plain_rows() -> list[Row]:
    """Operators and views on small tensors, and what Python adds."""
    x = torch.randn(64, 64, device="cuda")
    h, index = x.bfloat16(), torch.randint(0, 64, (64,), device="cuda")
    nothing = nn.Identity()
    return [
        Row("python", "cpu", python, 100),
        Row("nn.Identity", "cpu", lambda: nothing(x), 1000),
        Row("empty", "cpu", lambda: torch.empty(64, device="cuda"), 400),
        Row("view", "cpu", lambda: x.view(-1), 1000),
        Row("slice", "cpu", lambda: x[:, 1:], 400),
        Row("split", "cpu", lambda: x.split(16), 300),
        Row("add", "cpu", lambda: x + x, 200),
        Row("add_", "cpu", lambda: x.add_(x), 200),
        Row("mul scalar", "cpu", lambda: h * 2.0, 200),
        Row("to float", "cpu", lambda: h.float(), 200),
        Row("cat", "cpu", lambda: torch.cat((x, x)), 200),
        Row("softmax", "cpu", lambda: h.softmax(-1), 200),
        Row("rms_norm", "cpu", lambda: F.rms_norm(h, (64,)), 100),
        Row("index", "cpu", lambda: x[index], 100),
    ]


def library_rows() -> list[Row]:
    """Rows for CUDA's calls: launches, events, copies, products."""
    h, f = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16), torch.randn(64, 64, device="cuda")
    event, side = torch.cuda.Event(), torch.cuda.Stream()
    pinned = torch.empty(64, 64, pin_memory=True)
    event.record()
    conv, image = nn.Conv2d(64, 64, 3).cuda(), torch.randn(2, 64, 8, 8, device="cuda")
    plain = nn.Conv2d(64, 64, 3, bias=False, device="cuda", dtype=torch.bfloat16)
    plain.weight.data = plain.weight.data.to(memory_format=torch.channels_last)
    last = image.to(torch.bfloat16, memory_format=torch.channels_last).requires_grad_()
    q = torch.randn(1, 4, 64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    return [
        Row("launch", "driver", lambda: torch.cuda._sleep(1), 300),
        Row("event record", "driver", event.record, 300),
        Row("event query", "driver", event.query, 300),
        Row("stream wait_event", "driver", lambda: side.wait_event(event), 300),
        Row("synchronize", "driver", torch.cuda.synchronize, 100),
        Row("zero_", "driver", f.zero_, 300),
        Row("h2d pinned", "driver", lambda: f.copy_(pinned, non_blocking=True), 200),
        Row("mm", "driver", lambda: h @ h, 200),
        Row("linear bias", "driver", lambda: F.linear(h, h, h[0]), 200),
        Row("conv2d", "driver", lambda: conv(image), 50),
        Row("convolution", "driver", lambda: plain(last), 50),
        Row("convolution and backward", "driver", lambda: plain(last).sum().backward(), 20),
        Row("attention", "driver", lambda: F.scaled_dot_product_attention(q, q, q), 50),
        Row("attention and backward", "driver", lambda: F.scaled_dot_product_attention(q, q, q).sum().backward(), 20),
        Row("item", "driver", lambda: f[0, 0].item(), 50),
    ]


def autograd_rows() -> list[Row]:
    """Forward and backward passes of twenty operators, and of fifty leaves."""
    x = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def chain(f: Callable[[torch.Tensor], torch.Tensor], backward: bool) -> Callable[[], None]:
        def call() -> None:
            y = w
            for _ in range(20):
                y = f(y)
            if backward:
                y.sum().backward()

        return call

    functions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "mul": lambda y: y * x,
        "silu": F.silu,
        "view": lambda y: y.view(64, 64),
        "custom": Double.apply,
    }
    rows = []
    for name, f in functions.items():
        rows.append(Row(f"20x {name}", "cpu", chain(f, False), 20))
        rows.append(Row(f"20x {name} and backward", "cpu", chain(f, True), 10))
    leaves = [torch.randn(64, device="cuda", requires_grad=True) for _ in range(50)]
    rows.append(Row("50 leaves and backward", "cpu", lambda: torch.stack(leaves).sum().backward(), 5))
    return rows


def list_rows() -> list[Row]:
    """Operators on lists of tensors, and optimizers."""
    params = [nn.Parameter(torch.randn(64, 64, device="cuda")) for _ in range(20)]
    for p in params:
        p.grad = torch.randn_like(p)
    with torch.no_grad():
        rows = [Row("foreach_sqrt 20", "cpu", lambda: torch._foreach_sqrt(params), 50)]  # type: ignore[arg-type]
    kinds = {"foreach": {"foreach": True}, "fused": {"fused": True}, "loop": {"foreach": False}}
    for kind, flags in kinds.items():
        optimizer = torch.optim.AdamW(params, **flags)  # type: ignore[arg-type]
        rows.append(Row(f"AdamW {kind} 20", "cpu", optimizer.step, 4 if kind == "loop" else 10))
    rows.append(Row("clip_grad_norm 20", "cpu", lambda: nn.utils.clip_grad_norm_(params, 1.0), 10))
    return rows


def step(model: nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """A training step of `model` on `x`, as a call."""

    def call() -> None:
        model(x).float().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return call


def step_rows() -> list[Row]:
    """Code of many places, each for a moment: how a training step uses the processor's caches."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.nn.parallel import DistributedDataParallel

    def stack() -> nn.Sequential:
        return nn.Sequential(*(Block() for _ in range(4))).to("cuda", torch.bfloat16)

    x = torch.randn(2, 64, 256, device="cuda", dtype=torch.bfloat16)
    plain = stack()
    rows = [
        Row("4 blocks forward", "step", lambda: plain(x), 2),
        Row("4 blocks step", "step", step(plain, x, torch.optim.AdamW(plain.parameters(), fused=True)), 1),
    ]
    amp = nn.Sequential(*(Block() for _ in range(4))).to("cuda")
    adam = torch.optim.AdamW(amp.parameters())

    def autocast() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = amp(x).float().mean()
        loss.backward()
        adam.step()
        adam.zero_grad()

    rows.append(Row("4 blocks autocast step", "step", autocast, 1))
    ddp = DistributedDataParallel(stack(), device_ids=[0])
    rows.append(Row("4 blocks DDP step", "step", step(ddp, x, torch.optim.AdamW(ddp.parameters(), fused=True)), 1))
    sharded = stack()
    for block in sharded:
        fully_shard(block, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    fully_shard(sharded)
    optimizer = torch.optim.AdamW(sharded.parameters(), fused=True)
    rows.append(Row("4 blocks FSDP2 step", "step", step(sharded, x, optimizer), 1))
    mesh, split = init_device_mesh("cuda", (1,)), stack()
    near, far = ColwiseParallel, RowwiseParallel
    ways = {"wq": near(), "wk": near(), "wv": near(), "w1": near(), "w3": near(), "wo": far(), "w2": far()}
    for block in split:
        parallelize_module(block, mesh, ways)
    rows.append(Row("4 blocks tensor parallel", "step", lambda: split(x).sum().backward(), 1))
    return rows


def all_rows() -> list[Row]:
    """Every row. The process is the one rank of a group of NCCL then."""
    torch.cuda.set_device(0)
    store = dist.HashStore()
    dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=torch.device("cuda", 0))
    return [*plain_rows(), *library_rows(), *autograd_rows(), *list_rows(), *step_rows()]


def timed(row: Row) -> tuple[float, float]:
    """ns per call of a round: elapsed, and CPU time of all threads."""
    for _ in range(WARM):
        row.call()
    torch.cuda.synchronize()
    cpu, begin = time.process_time_ns(), time.perf_counter_ns()
    for _ in range(row.count):
        row.call()
    spent, worked = time.perf_counter_ns() - begin, time.process_time_ns() - cpu
    return round(spent / row.count, 1), round(worked / row.count, 1)


Times = dict[str, tuple[list[float], list[float]]]


def measure(rows: list[Row], rounds: int, turns: Turns | None) -> Times:
    """Results of :func:`timed`, by row and round."""
    times: Times = {row.name: ([], []) for row in rows}
    for turn in range(-2, rounds):  # two in advance: code is compiled, kernels are loaded, optimizers make their state
        for row in rows:
            if turns:
                turns.wait()
            for found, ns in zip(times[row.name], timed(row), strict=True):
                if turn >= 0:
                    found.append(ns)
            if turns:
                turns.done()
    return times


def machine() -> dict[str, object]:
    """CPU model, clock in MHz of every processor as the kernel gives it, cores, load."""
    facts: dict[str, list[str]] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), []).append(value.strip())
    clocks = sorted(float(value) for value in facts.get("cpu MHz", []))
    numbers = [facts.get(key, ["?"])[0] for key in ("cpu family", "model", "stepping", "cache size", "microcode")]
    return {
        "cpu": facts.get("model name", ["unknown"])[0],
        "numbers": numbers,
        "cores": os.cpu_count(),
        "usable": len(os.sched_getaffinity(0)),
        "mhz": [clocks[0], clocks[-1]] if clocks else [],
        "load": os.getloadavg()[0],
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "gpu": torch.cuda.get_device_name(),
        "gpus": torch.cuda.device_count(),
    }


def main() -> None:
    """Times all rows and writes them to the file named first; ends with `NO_GPU` where there is none."""
    if not torch.cuda.is_available():
        sys.exit(NO_GPU)
    rounds = int(sys.argv[2])
    rows, about = all_rows(), machine()
    times = measure(rows, rounds, Turns(sys.argv[3], int(sys.argv[4])) if len(sys.argv) > 3 else None)
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        print(json.dumps({"machine": about}), file=file)
        for row in rows:
            elapsed, worked = times[row.name]
            print(json.dumps({"name": row.name, "kind": row.kind, "ns": elapsed, "cpu_ns": worked}), file=file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

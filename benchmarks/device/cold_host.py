"""What data that left the caches costs the host: the same calls on few or many modules and parameters, at once or after other work.

    python benchmarks/device/cold_host.py > real.jsonl                              # JSON lines, as host_time.py's
    phantora trace --cluster 1x1xH100 benchmarks/device/cold_host.py > simulated.jsonl

Rows end in "again" (the call before was the same), "after work" (forward and backward passes of another model came
between) or "flushed" (64 MiB of memory were written between; real machines only).
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F
from host_time import API_COUNT, CHARGES, LEVEL_COUNT, LEVELS

from phantora.profile.host_probe import Block

TURNS = 15


def measure(name: str, call: Callable[[], object], between: Callable[[], object] | None = None) -> None:
    """Median time of one `call`, us, each after `between`, the GPU idle before."""
    turns, times = TURNS if CHARGES is None else 2, []
    row: dict[str, object] = {"name": name}
    for turn in range(-3, turns):
        if between is not None:
            between()
        torch.cuda.synchronize()
        if CHARGES is not None:
            before, colder = CHARGES[:API_COUNT], LEVELS[:LEVEL_COUNT]
        begin = time.perf_counter()
        call()
        if turn >= 0:
            times.append((time.perf_counter() - begin) * 1e6)
        if CHARGES is not None:  # in the simulator: what the call was charged for
            row["charges"] = {i: b - a for i, (a, b) in enumerate(zip(before, CHARGES[:API_COUNT], strict=True)) if b > a}
            row["levels"] = {i: b - a for i, (a, b) in enumerate(zip(colder, LEVELS[:LEVEL_COUNT], strict=True)) if b > a}
    torch.cuda.synchronize()
    print(json.dumps(row | {"us": statistics.median(times), "min_us": min(times)}), flush=True)


class Worker:
    """Forward and backward passes of a small model that nothing else here touches."""

    def __init__(self) -> None:
        self.model = nn.Sequential(*(Block() for _ in range(12))).to("cuda", torch.bfloat16)
        self.x = torch.randn(1, 64, 256, device="cuda", dtype=torch.bfloat16)

    def __call__(self) -> None:
        self.model(self.x).sum().backward()


def flush(buffer: torch.Tensor = torch.zeros(16 << 20)) -> None:  # noqa: B008
    buffer.add_(1.0)


def three_ways(name: str, call: Callable[[], object], work: Callable[[], object]) -> None:
    measure(f"{name} again", call)
    measure(f"{name} after work", call, work)
    if CHARGES is None:
        measure(f"{name} flushed", call, flush)


def optimizers(work: Callable[[], object]) -> None:
    kinds: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
        "AdamW fused": lambda p: torch.optim.AdamW(p, 1e-4, fused=True),
        "AdamW foreach": lambda p: torch.optim.AdamW(p, 1e-4, foreach=True),
        "AdamW loop": lambda p: torch.optim.AdamW(p, 1e-4, foreach=False),
        "SGD fused": lambda p: torch.optim.SGD(p, 1e-4, momentum=0.9, fused=True),
        "SGD foreach": lambda p: torch.optim.SGD(p, 1e-4, momentum=0.9, foreach=True),
        "Adafactor": lambda p: torch.optim.Adafactor(p, 1e-4),
    }
    for count in (20, 150, 500):
        params = [nn.Parameter(torch.randn(64, 64, device="cuda")) for _ in range(count)]
        for p in params:
            p.grad = torch.randn_like(p)
        for name, make in kinds.items():
            if count == 500 and name in ("AdamW loop", "Adafactor"):
                continue
            three_ways(f"{name} {count}", make(params).step, work)
        three_ways(f"clip_grad_norm {count}", lambda params=params: nn.utils.clip_grad_norm_(params, 1.0), work)  # type: ignore[misc]


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.norm(self.conv(x)), inplace=True)


def modules(work: Callable[[], object]) -> None:
    kinds: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
        "Identity": (nn.Identity, torch.randn(4, 64, device="cuda")),
        "ReLU": (nn.ReLU, torch.randn(4, 64, device="cuda")),
        "Linear": (lambda: nn.Linear(64, 64), torch.randn(4, 64, device="cuda")),
        "LayerNorm": (lambda: nn.LayerNorm(64), torch.randn(4, 64, device="cuda")),
        "Conv": (Conv, torch.randn(2, 16, 8, 8, device="cuda")),
        "Block": (Block, torch.randn(1, 64, 256, device="cuda")),
    }
    for name, (make, x) in kinds.items():
        count = 20 if name == "Block" else 160
        distinct = nn.ModuleList(make() for _ in range(count)).cuda()
        for kind, chain in ((f"{count} {name}s", list(distinct)), (f"{count}x one {name}", [distinct[0]] * count)):

            def forward(chain: list[nn.Module] = chain, x: torch.Tensor = x) -> torch.Tensor:
                y = x
                for module in chain:
                    y = module(y)
                return y

            def evaluate(forward: Callable[[], torch.Tensor] = forward) -> None:
                with torch.no_grad():
                    forward()

            def both(forward: Callable[[], torch.Tensor] = forward, distinct: nn.ModuleList = distinct) -> None:
                forward().sum().backward()

            three_ways(f"{kind} forward", evaluate, work)
            if name not in ("Identity", "ReLU"):
                three_ways(f"{kind} forward and backward", both, work)


def freed(work: Callable[[], object]) -> None:
    """Frees of tensors, and what follows a backward pass."""
    held: list[torch.Tensor] = []

    def fill(size: int = 64) -> None:
        held.extend(torch.empty(size, device="cuda") for _ in range(150))

    for size, kind in ((64, "small"), (1 << 20, "large")):
        measure(f"free 150 {kind} tensors again", held.clear, lambda size=size: fill(size))  # type: ignore[misc]
        measure(f"free 150 {kind} tensors after work", held.clear, lambda size=size: (fill(size), work()))  # type: ignore[misc]
        measure(f"empty 150 {kind} tensors again", lambda size=size: fill(size), held.clear)  # type: ignore[misc]
        measure(f"empty 150 {kind} tensors after work", lambda size=size: fill(size), lambda: (held.clear(), work()))  # type: ignore[misc]
        held.clear()
    model = nn.ModuleList(nn.Linear(64, 64) for _ in range(100)).cuda()
    params, x = list(model.parameters()), torch.randn(4, 64, device="cuda")
    optimizer = torch.optim.AdamW(params, 1e-4, fused=True)

    def passes() -> None:
        y = x
        for module in model:
            y = module(y)
        y.sum().backward()

    def stepped() -> None:
        passes()
        optimizer.step()

    measure("200 gradients after backward", lambda: [p.grad for p in params], lambda: (optimizer.zero_grad(), passes()))
    measure("AdamW fused 200 after backward", optimizer.step, lambda: (optimizer.zero_grad(), passes()))
    measure("zero_grad 200 after backward", optimizer.zero_grad, passes)
    measure("zero_grad 200 after step", optimizer.zero_grad, stepped)


def modes() -> None:
    """The same calls under `torch.set_default_device`, whose mode sees each call of torch in Python."""
    x = torch.randn(64, 64, device="cuda")
    params = [nn.Parameter(torch.randn(64, 64, device="cuda")) for _ in range(150)]
    fused, looped = torch.optim.AdamW(params, fused=True), torch.optim.AdamW(params, foreach=False)

    def zero() -> None:
        for p in params:
            p.grad = None

    def give() -> None:
        for p, g in zip(params, grads, strict=True):
            p.grad = g

    grads = [torch.randn_like(p) for p in params]
    give()
    calls: dict[str, Callable[[], object]] = {
        "150x grad": lambda: [p.grad for p in params], "150x shape": lambda: [p.shape for p in params],
        "150x view": lambda: [x.view(-1) for _ in range(150)], "150x relu": lambda: [F.relu(x) for _ in range(150)],
        "150x add": lambda: [x + x for _ in range(150)], "150x empty": lambda: [torch.empty(8, device="cuda") for _ in range(150)],
        "AdamW fused 150": fused.step, "AdamW loop 150": looped.step,
    }  # fmt: skip
    for mode in ("", " under a default device"):
        torch.set_default_device("cuda" if mode else None)
        for name, call in calls.items():
            measure(name + mode, call)
        measure("150x grad = None" + mode, zero, give)
        give()
    torch.set_default_device(None)


def convolutions(work: Callable[[], object]) -> None:
    """Twenty convolutions of one shape and of twenty shapes, by type and layout."""
    widths = [8 * (1 + i % 5) for i in range(21)]
    kinds = {"float32": (torch.float32, False), "bf16": (torch.bfloat16, False), "bf16 channels last": (torch.bfloat16, True)}
    for name, (dtype, last) in kinds.items():
        layout = torch.channels_last if last else torch.contiguous_format
        for many in (False, True):
            sizes = [(a, b, 1 + 2 * (i % 2)) for i, (a, b) in enumerate(itertools.pairwise(widths))] if many else [(16, 16, 3)] * 20
            modules = [nn.Conv2d(a, b, k, padding=k // 2, bias=False).to("cuda", dtype, memory_format=layout) for a, b, k in sizes]
            x = torch.randn(2, sizes[0][0], 12, 12, device="cuda", dtype=dtype).to(memory_format=layout)

            def forward(modules: list[nn.Conv2d] = modules, x: torch.Tensor = x) -> torch.Tensor:
                for module in modules:
                    x = module(x)
                return x

            def both(forward: Callable[[], torch.Tensor] = forward) -> None:
                forward().sum().backward()

            label = f"20 {name} convolutions of {'many shapes' if many else 'one shape'}"
            three_ways(f"{label} forward", forward, work)
            three_ways(f"{label} forward and backward", both, work)
    x = torch.randn(2, 64, 8, 8, device="cuda", dtype=torch.bfloat16)
    norms = nn.ModuleList(nn.GroupNorm(32, 64) for _ in range(20)).to("cuda", torch.bfloat16)
    batches = nn.ModuleList(nn.BatchNorm2d(64) for _ in range(20)).cuda()
    linears = nn.ModuleList(nn.Linear(64, 64) for _ in range(20)).cuda()
    casts = torch.randn(4, 64, device="cuda")

    def through(modules: nn.ModuleList, x: torch.Tensor, amp: bool) -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=amp):
            for module in modules:
                x = module(x)
        x.sum().backward()

    three_ways("20 GroupNorms forward and backward", lambda: through(norms, x, False), work)
    three_ways("20 BatchNorms forward and backward", lambda: through(batches, x.float(), False), work)
    three_ways("20 Linears with autocast forward and backward", lambda: through(linears, casts, True), work)
    three_ways("20 interpolate", lambda: [F.interpolate(x, scale_factor=2.0) for _ in range(20)], work)
    three_ways("20 cat", lambda: [torch.cat([x, x], 1) for _ in range(20)], work)


def main() -> None:
    torch.manual_seed(0)
    work = Worker()
    convolutions(work)
    modes()
    freed(work)
    modules(work)
    optimizers(work)


if __name__ == "__main__":
    main()

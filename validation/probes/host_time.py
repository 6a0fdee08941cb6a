"""Host time of PyTorch calls, call by call, on tiny tensors (the host never waits for the GPU). JSON lines.

Runs on a real GPU and in the simulator, alone or under torchrun (then with collectives, DTensor, FSDP2):

    torchrun --standalone --nproc-per-node 4 -m validation.probes.host_time > real.jsonl
    phantora trace --cluster 1x4xH200 -m validation.probes.host_time > simulated.jsonl
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from phantora.profile.host_probe import Block, Double, step
from validation.charges import SIMULATED, counts, since

RANK = int(os.environ.get("RANK", "0"))
ROUNDS = 7


def measure(name: str, call: Callable[[], object], count: int = 100) -> None:
    """Median time of `call` in microseconds over rounds of `count`, the GPU idle before each round."""
    if SIMULATED:  # the simulator's clock does not scatter
        count = min(count, 3)
    for _ in range(5):
        call()
    times = []
    for _ in range(1 if SIMULATED else ROUNDS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        times.append((time.perf_counter() - begin) / count)
    torch.cuda.synchronize()
    if RANK == 0:
        row: dict[str, Any] = {"name": name, "us": statistics.median(times) * 1e6, "min_us": min(times) * 1e6}
        if SIMULATED:  # the charges of the call
            before = counts()
            call()
            row |= since(before)
        print(json.dumps(row), flush=True)
    elif SIMULATED:
        call()


class Bottleneck(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2, self.c3 = nn.Conv2d(64, 16, 1, bias=False), nn.Conv2d(16, 16, 3, 1, 1, bias=False), nn.Conv2d(16, 64, 1, bias=False)
        self.b1, self.b2, self.b3 = nn.BatchNorm2d(16), nn.BatchNorm2d(16), nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.b1(self.c1(x)))
        y = self.relu(self.b2(self.c2(y)))
        return self.relu(self.b3(self.c3(y)) + x)


def stack(layers: int = 4) -> nn.Sequential:
    return nn.Sequential(*(Block() for _ in range(layers))).to("cuda", torch.bfloat16)


def operators() -> None:
    x = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16)
    f = torch.randn(64, 64, device="cuda")
    w, bias = torch.randn_like(x), torch.randn(64, device="cuda", dtype=torch.bfloat16)
    q = torch.randn(1, 4, 64, 64, device="cuda", dtype=torch.bfloat16)
    index = torch.randint(0, 64, (64,), device="cuda")
    table = torch.randn(100, 64, device="cuda", dtype=torch.bfloat16)
    pinned = torch.empty(64, 64, pin_memory=True)
    mask = f > 0
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    calls: dict[str, Callable[[], object]] = {
        "add": lambda: x + x, "add_": lambda: x.add_(x), "mul scalar": lambda: x * 2.0, "mm": lambda: x @ w,
        "addmm": lambda: torch.addmm(bias, x, w), "bmm": lambda: torch.bmm(q[0], q[0]), "linear": lambda: F.linear(x, w),
        "linear bias": lambda: F.linear(x, w, bias), "rms_norm": lambda: F.rms_norm(x, (64,), bias),
        "layer_norm": lambda: F.layer_norm(x, (64,), bias, bias), "softmax": lambda: x.softmax(-1),
        "silu": lambda: F.silu(x), "gelu": lambda: F.gelu(x), "relu_": lambda: F.relu_(x), "cat": lambda: torch.cat((x, x)),
        "chunk": lambda: x.chunk(2, -1), "split": lambda: x.split(16), "to float": lambda: x.float(),
        "copy_": lambda: f.copy_(x), "zero_": lambda: f.zero_(), "fill_": lambda: f.fill_(1.0),
        "empty": lambda: torch.empty(64, device="cuda"), "zeros": lambda: torch.zeros(64, device="cuda"),
        "ones_like": lambda: torch.ones_like(f), "view": lambda: x.view(-1), "t": lambda: x.t(),
        "transpose contiguous": lambda: x.transpose(0, 1).contiguous(), "select": lambda: x[0], "slice": lambda: x[:, 1:],
        "index": lambda: x[index], "embedding": lambda: F.embedding(index, table), "where": lambda: torch.where(mask, f, f),
        "cross_entropy": lambda: F.cross_entropy(f, index), "sdpa flash": lambda: flash(q, q, q),
        "sdpa default": lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True), "sum": lambda: f.sum(),
        "mean dim": lambda: f.mean(-1), "item": lambda: f[0, 0].item(), "arange": lambda: torch.arange(64, device="cuda"),
        "topk": lambda: f.topk(2), "sort": lambda: f.sort(), "dropout": lambda: F.dropout(f, 0.1),
        "h2d pinned": lambda: f.copy_(pinned, non_blocking=True), "to cpu": lambda: index.cpu(),
        "gather": lambda: torch.gather(f, 1, index[:, None]), "pow": lambda: f.pow(2), "rsqrt": lambda: f.rsqrt(),
    }
    with torch.no_grad():
        for name, call in calls.items():
            measure(name, call)


def streams() -> None:
    s, e = torch.cuda.Stream(), torch.cuda.Event()
    x = torch.randn(64, device="cuda")

    def inside() -> None:
        with torch.cuda.stream(s):
            pass

    calls: dict[str, Callable[[], object]] = {
        "event record": lambda: e.record(), "stream wait_event": lambda: s.wait_event(e),
        "wait_stream": lambda: s.wait_stream(torch.cuda.current_stream()), "event create": lambda: torch.cuda.Event(),
        "event query": lambda: e.query(), "with stream": inside, "current_stream": lambda: torch.cuda.current_stream(),
        "record_stream": lambda: x.record_stream(s), "synchronize": lambda: torch.cuda.synchronize(),
        "empty_cache": lambda: torch.cuda.memory_allocated(),
    }
    for name, call in calls.items():
        measure(name, call)


def lists() -> None:
    for n in (20, 200):
        p = [torch.randn(64, 64, device="cuda") for _ in range(n)]
        g = [torch.randn(64, 64, device="cuda") for _ in range(n)]
        many = 2000 // n
        measure(f"foreach_add {n}", partial(lambda p, g: torch._foreach_add_(p, g), p, g), many)
        measure(f"foreach_mul scalar {n}", partial(lambda p: torch._foreach_mul_(p, 0.5), p), many)
        measure(f"foreach_addcdiv {n}", partial(lambda p, g: torch._foreach_addcdiv_(p, g, g, 0.1), p, g), many)
        measure(f"foreach_sqrt {n}", partial(lambda p: torch._foreach_sqrt(p), p), many)
        measure(f"foreach_norm {n}", partial(lambda p: torch._foreach_norm(p), p), many)
        measure(f"foreach_copy {n}", partial(lambda p, g: torch._foreach_copy_(p, g), p, g), many)
        measure(f"stack {n}", partial(lambda p: torch.stack(p), p), many)
        params = [nn.Parameter(t) for t in p]
        for t, grad in zip(params, g, strict=True):
            t.grad = grad
        for kind, flags in {"foreach": {"foreach": True}, "fused": {"fused": True}, "loop": {"foreach": False}}.items():
            optimizer = torch.optim.AdamW(params, **flags)  # type: ignore[arg-type]
            measure(f"AdamW {kind} {n}", optimizer.step, max(1, 400 // n))
        sgd = torch.optim.SGD(params, momentum=0.9)
        measure(f"SGD foreach {n}", sgd.step, max(1, 400 // n))
        measure(f"clip_grad_norm {n}", partial(lambda params: nn.utils.clip_grad_norm_(params, 1.0), params), max(1, 400 // n))
        measure(f"zero_grad to zero {n}", partial(lambda sgd: sgd.zero_grad(set_to_none=False), sgd), max(1, 400 // n))
        for t in params:
            t.grad = None
        measure(f"zero_grad none {n}", partial(lambda sgd: sgd.zero_grad(), sgd), max(1, 400 // n))


def autograd() -> None:
    x = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def chain(f: Callable[[torch.Tensor], torch.Tensor], n: int = 20) -> Callable[[], None]:
        def call() -> None:
            y = w
            for _ in range(n):
                y = f(y)
            y.sum().backward()

        return call

    def forward(f: Callable[[torch.Tensor], torch.Tensor], n: int = 20) -> Callable[[], None]:
        def call() -> None:
            y = w
            for _ in range(n):
                y = f(y)

        return call

    functions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "add": lambda y: y + x, "mul": lambda y: y * x, "silu": F.silu, "mm": lambda y: y @ x,
        "linear": lambda y: F.linear(y, x), "view": lambda y: y.view(64, 64), "transpose": lambda y: y.transpose(0, 1),
        "custom": Double.apply, "rms_norm": lambda y: F.rms_norm(y, (64,)), "linear own weight": lambda y: F.linear(y, w),
    }
    for name, f in functions.items():
        measure(f"20x {name}", forward(f), 10)
        measure(f"20x {name} and backward", chain(f), 10)
    leaves = [torch.randn(64, device="cuda", requires_grad=True) for _ in range(50)]
    measure("50 leaves and backward", lambda: torch.stack(leaves).sum().backward(), 10)
    for leaf in leaves:
        leaf.register_post_accumulate_grad_hook(lambda p: None)
    measure("50 leaves with hooks and backward", lambda: torch.stack(leaves).sum().backward(), 10)


def modules() -> None:
    x = torch.randn(2, 64, 256, device="cuda", dtype=torch.bfloat16)
    model = stack()
    linear, norm, nothing = nn.Linear(256, 256, bias=False).to("cuda", torch.bfloat16), model[0].n1, nn.Identity()
    with torch.no_grad():
        measure("nn.Identity", lambda: nothing(x))
        measure("nn.Linear", lambda: linear(x))
        measure("nn.RMSNorm", lambda: norm(x))  # type: ignore[operator]
    measure("4 blocks forward", lambda: model(x), 10)
    measure("4 blocks forward backward", lambda: model(x).sum().backward(), 10)

    def recomputed() -> None:
        y = x.detach().requires_grad_()
        for block in model:
            y = checkpoint(block, y, use_reentrant=False)
        y.sum().backward()

    measure("4 blocks checkpointed", recomputed, 10)

    def autocast() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            single(x.float()).sum().backward()

    single = nn.Sequential(*(Block() for _ in range(4))).to("cuda")
    measure("4 blocks autocast", autocast, 10)
    conv = nn.Sequential(*(Bottleneck() for _ in range(4))).to("cuda")
    image = torch.randn(2, 64, 8, 8, device="cuda")
    measure("4 bottlenecks forward", lambda: conv(image), 10)
    measure("4 bottlenecks forward backward", lambda: conv(image).sum().backward(), 10)


def collectives() -> None:
    world = dist.get_world_size()
    x = torch.ones(64 * world, device="cuda")
    part = torch.ones(64, device="cuda")
    import torch.distributed._functional_collectives as funcol

    def exchange() -> None:
        to, of = (RANK + 1) % world, (RANK - 1) % world
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, part, to), dist.P2POp(dist.irecv, x[:64], of)]):
            work.wait()

    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(x), "all_reduce async wait": lambda: dist.all_reduce(x, async_op=True).wait(),
        "all_gather": lambda: dist.all_gather_into_tensor(x, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, x), "broadcast": lambda: dist.broadcast(x, 0),
        "all_to_all": lambda: dist.all_to_all_single(x, x.clone()),
        "functional all_reduce": lambda: funcol.wait_tensor(funcol.all_reduce(part, "sum", dist.distributed_c10d._get_default_group())),
    }
    if world > 1:
        calls["batch_isend_irecv"] = exchange
    for name, call in calls.items():
        measure(name, call, 30)


def distributed_tensors() -> None:
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    x = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16)
    dt, dw = distribute_tensor(x, mesh, [Replicate()]), distribute_tensor(x, mesh, [Shard(0)])
    calls: dict[str, Callable[[], object]] = {
        "DTensor add": lambda: dt + dt, "DTensor linear": lambda: F.linear(dt, dw), "DTensor silu": lambda: F.silu(dt),
        "DTensor view": lambda: dt.view(-1), "DTensor redistribute": lambda: dw.redistribute(mesh, [Replicate()]),
        "DTensor no redistribute": lambda: dw.redistribute(mesh, [Shard(0)]), "DTensor to_local": lambda: dt.to_local(),
        "DTensor from_local": lambda: type(dt).from_local(x, mesh, [Replicate()], run_check=False),
        "DTensor foreach": lambda: torch._foreach_mul_([dw] * 20, 1.0),
    }
    for name, call in calls.items():
        measure(name, call, 30)


def parallel_steps() -> None:
    world = dist.get_world_size()
    x = torch.randn(2, 64, 256, device="cuda", dtype=torch.bfloat16)
    model = stack(8)
    measure("8 blocks: plain step", step(model, x, torch.optim.AdamW(model.parameters(), fused=True)), 5)
    ddp = DistributedDataParallel(stack(8), device_ids=[torch.cuda.current_device()])
    measure("8 blocks: DDP step", step(ddp, x, torch.optim.AdamW(ddp.parameters(), fused=True)), 5)
    model = stack(8)
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for block in model:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    measure("8 blocks: FSDP2 forward", lambda: model(x), 5)
    measure("8 blocks: FSDP2 step", step(model, x, torch.optim.AdamW(model.parameters(), fused=True)), 5)
    mesh = init_device_mesh("cuda", (world,))
    model = stack(8)
    near, far = ColwiseParallel, RowwiseParallel
    for block in model:
        parallelize_module(
            block, mesh,
            {"wq": near(), "wk": near(), "wv": near(), "w1": near(), "w3": near(), "wo": far(), "w2": far()},
        )
    measure("8 blocks: tensor parallel forward", lambda: model(x), 5)
    measure("8 blocks: tensor parallel forward backward", lambda: model(x).sum().backward(), 5)


def main() -> None:
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29513", "RANK": "0", "WORLD_SIZE": "1"}.items():
        os.environ.setdefault(name, value)
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    parts = [operators, streams, lists, autograd, modules, collectives, distributed_tensors, parallel_steps]
    for part in parts:
        if len(sys.argv) < 2 or part.__name__ in sys.argv[1:]:
            part()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

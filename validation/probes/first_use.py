"""Cost of first uses, and host cost of calls, on a real GPU. Prints JSON lines.

python -m validation.probes.first_use
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import statistics
import subprocess
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def report(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def once(name: str, fn: object) -> None:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    fn()  # type: ignore[operator]
    host = time.perf_counter() - begin
    torch.cuda.synchronize()
    report(name="first_use", what=name, host_us=host * 1e6, done_us=(time.perf_counter() - begin) * 1e6)


def per_call(name: str, fn: object, n: int = 300) -> None:
    for _ in range(20):
        fn()  # type: ignore[operator]
    times = []
    for _ in range(7):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(n):
            fn()  # type: ignore[operator]
        times.append((time.perf_counter() - begin) / n)
    torch.cuda.synchronize()
    report(name="per_call", what=name, us=statistics.median(times) * 1e6)


def used() -> int:
    if shutil.which("nvidia-smi") is None:
        return -1
    text = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.used,name,memory.total", "--format=csv,noheader,nounits"],
        capture_output=True, text=True, check=False,
    ).stdout
    return int(text.split(",")[0]) if text.strip() else -1


def first_calls() -> tuple[torch.Tensor, torch.Tensor]:
    """Runs operations that are slow, or take memory, at their first use. Returns a small tensor, and queries of an
    attention."""
    before = used()
    begin = time.perf_counter()
    torch.cuda.init()
    free, total = torch.cuda.mem_get_info()
    report(name="memory", what="context", before_mib=before, smi_mib=used(), free=free, total=total,
        init_s=time.perf_counter() - begin, gpu=torch.cuda.get_device_name())
    x = torch.ones(1024, device="cuda")
    report(name="memory", what="first tensor", smi_mib=used(), free=torch.cuda.mem_get_info()[0])
    once("add", lambda: x + x)
    once("add again", lambda: x + x)
    once("mul", lambda: x * x)
    once("sin", lambda: x.sin())
    once("sum", lambda: x.sum())
    a = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
    once("mm bf16 (creates cuBLAS)", lambda: a @ a)
    report(name="memory", what="cublas", free=torch.cuda.mem_get_info()[0], allocated=torch.cuda.memory_allocated())
    once("mm bf16 again", lambda: a @ a)
    b = torch.randn(512, 1024, device="cuda", dtype=torch.bfloat16)
    once("mm bf16 other shape", lambda: b @ a)
    lin = nn.Linear(1024, 1024, device="cuda", dtype=torch.bfloat16)
    once("linear with bias (cublasLt)", lambda: lin(a))
    q = torch.randn(1, 8, 512, 128, device="cuda", dtype=torch.bfloat16)
    once("sdpa default", lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True))
    once("sdpa default again", lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True))
    q2 = torch.randn(1, 8, 1024, 128, device="cuda", dtype=torch.bfloat16)
    once("sdpa default other shape", lambda: F.scaled_dot_product_attention(q2, q2, q2, is_causal=True))
    conv = nn.Conv2d(64, 64, 3, padding=1, device="cuda")
    im = torch.randn(8, 64, 56, 56, device="cuda")
    once("conv (creates cuDNN)", lambda: conv(im))
    once("conv again", lambda: conv(im))
    report(name="memory", what="cudnn", free=torch.cuda.mem_get_info()[0])
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "RANK": "0", "WORLD_SIZE": "1"}.items():
        os.environ.setdefault(name, value)
    begin = time.perf_counter()
    dist.init_process_group("nccl")
    report(name="first_use", what="init_process_group", host_us=(time.perf_counter() - begin) * 1e6)
    free = torch.cuda.mem_get_info()[0]
    once("first all_reduce (creates the communicator)", lambda: dist.all_reduce(x))
    report(name="memory", what="communicator of one", bytes=free - torch.cuda.mem_get_info()[0])
    return x, q


def training() -> None:
    # a small training loop: host time of the first iterations, without synchronising
    model = nn.Sequential(*[nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, norm_first=True) for _ in range(4)])
    model = model.to("cuda", torch.bfloat16)
    ddp = nn.parallel.DistributedDataParallel(model, device_ids=[0])
    opt = torch.optim.AdamW(ddp.parameters(), fused=True)
    data = torch.randn(4, 512, 1024, device="cuda", dtype=torch.bfloat16)
    for i in range(6):
        begin = time.perf_counter()
        loss = ddp(data).float().mean()
        forward = time.perf_counter()
        loss.backward()
        backward = time.perf_counter()
        opt.step()
        opt.zero_grad()
        end = time.perf_counter()
        torch.cuda.synchronize()
        report(name="iteration", i=i, forward_us=(forward - begin) * 1e6, backward_us=(backward - forward) * 1e6,
            optimizer_us=(end - backward) * 1e6, done_us=(time.perf_counter() - begin) * 1e6)


def allocations() -> None:
    rt = ctypes.CDLL("libcudart.so.13")
    p = ctypes.c_void_p()
    for size in (1 << 20, 2 << 20, 20 << 20, 256 << 20, 2 << 30, 8 << 30):
        mallocs, frees = [], []
        for _ in range(7):
            begin = time.perf_counter()
            rt.cudaMalloc(ctypes.byref(p), ctypes.c_size_t(size))
            middle = time.perf_counter()
            rt.cudaFree(p)
            mallocs.append(middle - begin)
            frees.append(time.perf_counter() - middle)
        report(name="malloc", bytes=size, malloc_us=statistics.median(mallocs) * 1e6, free_us=statistics.median(frees) * 1e6,
            first_malloc_us=mallocs[0] * 1e6)
    for size in (1 << 12, 1 << 20, 64 << 20):
        begin = time.perf_counter()
        t = torch.empty(size, dtype=torch.uint8).pin_memory()
        report(name="pin", bytes=size, us=(time.perf_counter() - begin) * 1e6)
        del t


def calls(x: torch.Tensor, q: torch.Tensor) -> None:
    """Host time of single calls in a loop."""
    s = torch.cuda.Stream()
    e = torch.cuda.Event()
    small = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    bias = torch.randn(64, device="cuda", dtype=torch.bfloat16)
    params = [torch.randn(64, 64, device="cuda") for _ in range(100)]
    grads = [torch.randn(64, 64, device="cuda") for _ in range(100)]
    calls = {
        "event record": lambda: e.record(), "stream wait": lambda: s.wait_event(e), "event create": lambda: torch.cuda.Event(),
        "event query": lambda: e.query(), "empty": lambda: torch.empty(64, device="cuda"), "view": lambda: small.view(-1),
        "t": lambda: small.t(), "add": lambda: small + small, "mm": lambda: small @ small,
        "addmm": lambda: torch.addmm(bias, small, small), "linear": lambda: F.linear(small, w),
        "linear bias": lambda: F.linear(small, w, bias), "bmm": lambda: torch.bmm(small[None], small[None]),
        "rms_norm": lambda: F.rms_norm(small, (64,)), "layer_norm": lambda: F.layer_norm(small, (64,)),
        "softmax": lambda: small.softmax(-1), "silu": lambda: F.silu(small), "cat": lambda: torch.cat((small, small)),
        "to float": lambda: small.float(), "sdpa flash": lambda: torch.ops.aten._scaled_dot_product_flash_attention(q, q, q),
        "all_reduce one rank": lambda: dist.all_reduce(x),
        "foreach_add 100": lambda: torch._foreach_add_(params, grads), "foreach_norm 100": lambda: torch._foreach_norm(grads),
    }
    for name, fn in calls.items():
        per_call(name, fn)
    def grad_step() -> None:
        (F.linear(small, w)).sum().backward()
    per_call("linear sum backward", grad_step, 100)
    def chain() -> None:
        y = small
        for _ in range(10):
            y = F.silu(F.linear(y, w))
        y.sum().backward()
    per_call("10x(linear silu) backward", chain, 30)
    blocks = nn.Sequential(*[nn.Sequential(nn.RMSNorm(64), nn.Linear(64, 64, bias=False), nn.SiLU()) for _ in range(10)]).to("cuda", torch.bfloat16)
    per_call("module 10x(rms linear silu) forward", lambda: blocks(small), 30)
    per_call("module 10x(rms linear silu) fwd bwd", lambda: blocks(small).sum().backward(), 30)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    mesh = init_device_mesh("cuda", (1,))
    dt = distribute_tensor(small, mesh, [Replicate()])
    dw = distribute_tensor(w.detach(), mesh, [Shard(0)])
    per_call("DTensor add", lambda: dt + dt)
    per_call("DTensor linear", lambda: F.linear(dt, dw))
    per_call("DTensor silu", lambda: F.silu(dt))
    per_call("DTensor view", lambda: dt.view(-1))
    per_call("DTensor redistribute", lambda: dw.redistribute(mesh, [Replicate()]))
    per_call("DTensor to_local", lambda: dt.to_local())
    per_call("DTensor from_local", lambda: type(dt).from_local(small, mesh, [Replicate()], run_check=False))
    dwg = distribute_tensor(w.detach(), mesh, [Shard(0)]).requires_grad_()
    per_call("DTensor linear silu sum backward", lambda: F.silu(F.linear(dt, dwg)).to_local().sum().backward(), 50)  # type: ignore[attr-defined]
    dist.destroy_process_group()


def main() -> None:
    x, q = first_calls()
    training()
    allocations()
    calls(x, q)


if __name__ == "__main__":
    main()

"""Host-bound steps on one GPU, with the host's own profile next to them. Plain PyTorch; JSON lines.

    python -m validation.workloads.host_runs --which gpt [--iters N]     # one workload, real or under phantora trace
    python -m validation.workloads.host_runs --all DIR [--budget S]      # profile host, allocator, every workload: DIR/host_runs.jsonl

`--all` starts each workload in a process of its own. Workloads whose libraries are not installed say so and are left out.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from phantora.run_process import PHANTORA
from validation.workloads.timing import row_of, timed

WARM = 5
MIB, GIB = 1 << 20, 1 << 30
Step = Callable[[], object]


# ---------------------------------------------------------------------- models


class Block(nn.Module):
    """A decoder layer of GPT-2 with LayerNorm, or of Llama with RMSNorm and a gate."""

    def __init__(self, width: int, heads: int, llama: bool) -> None:
        super().__init__()
        self.heads, self.llama = heads, llama
        norm, bias = (nn.RMSNorm if llama else nn.LayerNorm), not llama
        self.n1, self.n2 = norm(width), norm(width)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width, bias=bias) for _ in range(4))
        self.w1, self.w2 = nn.Linear(width, 4 * width, bias=bias), nn.Linear(4 * width, width, bias=bias)
        self.w3 = nn.Linear(width, 4 * width, bias=False) if llama else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.n1(x)
        b, s, _ = h.shape
        size = self.wq.weight.shape[1] // self.heads
        q, k, v = (w(h).view(b, s, -1, size).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(a.transpose(1, 2).reshape(b, s, -1))
        h = self.n2(x)
        return x + (self.w2(F.silu(self.w1(h)) * self.w3(h)) if self.w3 is not None else self.w2(F.gelu(self.w1(h))))


class Language(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, vocabulary: int = 32000, llama: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(Block(width, heads, llama) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.words(ids))))


class Residual(nn.Module):
    """Residual block of a diffusion U-Net."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.one, self.two, self.time = nn.GroupNorm(32, into), nn.GroupNorm(32, out), nn.Linear(256, out)
        self.a, self.b = nn.Conv2d(into, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.skip = nn.Conv2d(into, out, 1) if into != out else nn.Identity()

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        y = self.a(F.silu(self.one(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.skip(x) + self.b(F.silu(self.two(y)))


class Unet(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        w = [width, 2 * width, 4 * width, 4 * width]
        self.into, self.out = nn.Conv2d(4, width, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 256))
        self.down = nn.ModuleList(nn.ModuleList([Residual(a, b), Residual(b, b)]) for a, b in zip([width, *w], w, strict=False))
        self.up = nn.ModuleList(
            nn.ModuleList([Residual(a + b, c), Residual(c, c)]) for a, b, c in zip(w[::-1], w[::-1], [*w[::-1][1:], width], strict=True)
        )
        self.heads = nn.MultiheadAttention(w[-1], 8, batch_first=True)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        t, x, kept = self.time(t), self.into(x), []
        for i, (one, two) in enumerate(cast("Iterable[nn.ModuleList]", self.down)):
            x = two(one(x, t), t)
            kept.append(x)
            x = F.avg_pool2d(x, 2) if i < 3 else x
        b, c, h, w = x.shape
        flat = x.flatten(2).transpose(1, 2)
        x = x + self.heads(flat, flat, flat, need_weights=False)[0].transpose(1, 2).view(b, c, h, w)
        for i, (one, two) in enumerate(cast("Iterable[nn.ModuleList]", self.up)):
            x = two(one(torch.cat([x, kept.pop()], 1), t), t)
            x = F.interpolate(x, scale_factor=2.0, mode="nearest") if i < 3 else x
        return self.out(x)


class Detector(nn.Module):
    """A backbone, a pyramid, heads on each level, and a loss over boxes image by image."""

    def __init__(self) -> None:
        super().__init__()
        from torchvision.models import resnet18

        body = resnet18(weights=None)
        self.stem = nn.Sequential(body.conv1, body.bn1, body.relu, body.maxpool)
        self.levels = nn.ModuleList([body.layer1, body.layer2, body.layer3, body.layer4])
        self.side = nn.ModuleList(nn.Conv2d(c, 128, 1) for c in (64, 128, 256, 512))
        self.smooth = nn.ModuleList(nn.Conv2d(128, 128, 3, padding=1) for _ in range(4))
        self.score = nn.Sequential(nn.Conv2d(128, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 9, 1))
        self.box = nn.Sequential(nn.Conv2d(128, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 36, 1))

    def forward(self, images: torch.Tensor, truth: list[torch.Tensor]) -> torch.Tensor:
        x, sides = self.stem(images), []
        for level, side in zip(self.levels, self.side, strict=True):
            x = level(x)
            sides.append(side(x))
        for i in (2, 1, 0):
            sides[i] = sides[i] + F.interpolate(sides[i + 1], size=sides[i].shape[-2:], mode="nearest")
        maps = [smooth(side) for smooth, side in zip(self.smooth, sides, strict=True)]
        scores = torch.cat([self.score(m).permute(0, 2, 3, 1).reshape(len(images), -1) for m in maps], 1)
        boxes = torch.cat([self.box(m).permute(0, 2, 3, 1).reshape(len(images), -1, 4) for m in maps], 1)
        losses = []
        for score, box, wanted in zip(scores, boxes, truth, strict=True):
            low, high = torch.max(box[:, None, :2], wanted[None, :, :2]), torch.min(box[:, None, 2:], wanted[None, :, 2:])
            shared = (high - low).clamp(min=0).prod(-1)
            best, which = shared.max(1)
            target = (best > 0.5).float()
            losses.append(F.binary_cross_entropy_with_logits(score, target))
            losses.append((F.smooth_l1_loss(box, wanted[which], reduction="none").sum(-1) * target).mean())
        return torch.stack(losses).sum()


# ---------------------------------------------------------------------- workloads


def trained(model: nn.Module, loss_of: Callable[[], torch.Tensor], amp: bool = False, clip: bool = False, fused: bool = True) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=fused)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=amp):
            loss = loss_of()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def words(batch: int, seq: int, high: int = 32000) -> torch.Tensor:
    return torch.randint(high, (batch, seq), device="cuda")


def language_loss(model: nn.Module, batch: int, seq: int) -> Callable[[], torch.Tensor]:
    x, y = words(batch, seq), words(batch, seq)
    return lambda: F.cross_entropy(model(x).float().view(-1, 32000), y.view(-1))


def gpt() -> Step:
    model = Language(768, 12, 12, llama=False).cuda()
    return trained(model, language_loss(model, 1, 256), amp=True, clip=True, fused=False)


def llama() -> Step:
    model = Language(1024, 16, 16).to("cuda", torch.bfloat16)
    return trained(model, language_loss(model, 1, 512))


def one_rank() -> None:
    if dist.is_initialized():
        return
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29519", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
        os.environ.setdefault(name, value)
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))


def ddp() -> Step:
    one_rank()
    model = nn.parallel.DistributedDataParallel(Language(1024, 12, 16).to("cuda", torch.bfloat16), device_ids=[0])
    return trained(model, language_loss(model, 2, 256))


def fsdp2() -> Step:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    one_rank()
    model = Language(1024, 12, 16).cuda()
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return trained(model, language_loss(model, 1, 512), clip=True)


def tensor_parallel() -> Step:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    one_rank()
    mesh = init_device_mesh("cuda", (1,))
    model = Language(1024, 8, 16).to("cuda", torch.bfloat16)
    near, far = ColwiseParallel, RowwiseParallel
    for block in model.blocks:
        ways = {"wq": near(), "wk": near(), "wv": near(), "w1": near(), "w3": near(), "wo": far(), "w2": far()}
        parallelize_module(block, mesh, ways)
    split = [p for p in model.parameters() if hasattr(p, "placements")]
    whole = [p for p in model.parameters() if not hasattr(p, "placements")]
    optimizers = [torch.optim.AdamW(part, 1e-4, fused=True) for part in (split, whole)]
    loss_of = language_loss(model, 1, 512)

    def step() -> None:
        loss_of().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step


def hf_llama() -> Step:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16, num_key_value_heads=8, vocab_size=32000
    )
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
    ids = words(2, 256)
    return trained(model, lambda: model(input_ids=ids, labels=ids).loss)


class Texts(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((256,), index)


def hf_loop() -> Step:
    """A trainer's loop: batches from a loader, schedule, clipping, a loss that is read."""
    from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

    model = GPT2LMHeadModel(GPT2Config(n_layer=12, n_embd=768, n_head=12)).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    schedule = get_linear_schedule_with_warmup(optimizer, 10, 1000)
    batches = iter(torch.utils.data.DataLoader(Texts(), batch_size=4, shuffle=True))

    def step() -> None:
        ids = next(batches).to("cuda", non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        loss.item()

    return step


def decode() -> Step:
    """Greedy decoding of 32 tokens with a cache."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16, num_key_value_heads=8, vocab_size=32000,
        eos_token_id=None, pad_token_id=0,
    )
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
    ids, mask = words(1, 64), torch.ones(1, 64, dtype=torch.long, device="cuda")
    return lambda: model.generate(ids, attention_mask=mask, max_new_tokens=32, min_new_tokens=32, do_sample=False)


def decode_plain() -> Step:
    """16 tokens, each through the whole of a small model, chosen on the GPU and appended."""
    model = Language(512, 12, 8).to("cuda", torch.bfloat16).eval()
    start = words(1, 32)

    @torch.no_grad()
    def step() -> None:
        ids = start
        for _ in range(16):
            ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], 1)

    return step


def unet() -> Step:
    model = Unet().cuda()
    x, noise, t = torch.randn(2, 4, 64, 64, device="cuda"), torch.randn(2, 4, 64, 64, device="cuda"), torch.randn(2, 256, device="cuda")
    return trained(model, lambda: F.mse_loss(model(x, t).float(), noise), amp=True)


def vision(name: str, batch: int, amp: bool = True) -> Callable[[], Step]:
    def build() -> Step:
        import torchvision.models as models

        model = getattr(models, name)(weights=None).cuda()
        x, y = torch.randn(batch, 3, 224, 224, device="cuda"), torch.randint(1000, (batch,), device="cuda")
        return trained(model, lambda: F.cross_entropy(model(x).float(), y), amp=amp)

    return build


def detection() -> Step:
    model = Detector().cuda()
    images = torch.randn(4, 3, 256, 256, device="cuda")
    truth = [torch.rand(8, 4, device="cuda") for _ in range(4)]
    return trained(model, lambda: model(images, truth), amp=False)


def lstm_cells() -> Step:
    """A recurrent network written in Python, one cell at a time."""
    cell, head = nn.LSTMCell(256, 256).cuda(), nn.Linear(256, 1000).cuda()
    net = nn.ModuleList([cell, head])
    x, y = torch.randn(48, 16, 256, device="cuda"), torch.randint(1000, (16,), device="cuda")

    def loss() -> torch.Tensor:
        h = c = torch.zeros(16, 256, device="cuda")
        for part in x:
            h, c = cell(part, (h, c))
        return F.cross_entropy(head(h), y)

    return trained(net, loss)


def tiny() -> Step:
    """Many small kernels without a module or a gradient."""
    a, b = torch.randn(32, 64, device="cuda"), torch.randn(32, 64, device="cuda")

    @torch.no_grad()
    def step() -> None:
        x = a
        for _ in range(100):
            x = torch.where(x > 0, x * 0.5 + b, x - b.abs()).clamp(-3, 3)
            x = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5)

    return step


def policy() -> Step:
    """Reinforcement learning: a small network acts 32 times, its action is read, then it is updated."""
    net = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 8)).cuda()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    state = torch.randn(1, 64)

    def step() -> None:
        logs = []
        for _ in range(32):
            chances = F.log_softmax(net(state.cuda()), -1)
            action = int(chances.argmax(-1).item()) % 8  # the stubs of `--null` leave memory as it is
            logs.append(chances[0, action])
        optimizer.zero_grad()
        (-torch.stack(logs).mean()).backward()
        optimizer.step()

    return step


def retries() -> Step:
    """Near the capacity: blocks grow from step to step, so that each step gives back what the one before left."""
    free, _ = torch.cuda.mem_get_info()
    ballast = torch.empty(free - 6 * GIB, dtype=torch.uint8, device="cuda")
    turn = [0]

    def step() -> None:
        turn[0] += 1
        size = (300 + 20 * turn[0]) * MIB
        held = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(5 * GIB // size)]
        for each in held:
            each.add_(1)
        assert ballast.numel()

    return step


WORKLOADS: dict[str, Callable[[], Step]] = {
    "gpt": gpt, "llama": llama, "ddp": ddp, "fsdp2": fsdp2, "tensor_parallel": tensor_parallel, "hf_llama": hf_llama,
    "hf_loop": hf_loop, "decode": decode, "decode_plain": decode_plain, "unet": unet, "efficientnet": vision("efficientnet_b0", 8),
    "swin": vision("swin_t", 8), "vit": vision("vit_b_16", 2, amp=False), "regnet": vision("regnet_y_400mf", 16), "detection": detection,
    "lstm_cells": lstm_cells, "tiny": tiny, "policy": policy, "retries": retries,
}


def run(which: str, iters: int) -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(0)
    step = WORKLOADS[which]()
    row = row_of(
        f"host_{which}", timed(step, WARM, iters), name="host_runs", world_size=1, config={"which": which},
        cmd=f"python3 host_runs.py --which {which} --iters {iters}",
        retries=torch.cuda.memory_stats().get("num_alloc_retries", 0),
    )
    print(json.dumps(row), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


# ---------------------------------------------------------------------- the driver's allocator


def elapsed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e6


def ok(status: int) -> None:
    if status:
        raise RuntimeError(f"CUDA error {status}")


def show(name: str, size: int, us: list[float]) -> None:
    row = {"name": "alloc", "call": name, "bytes": size, "us": statistics.median(us), "all_us": [round(v, 2) for v in us]}
    print(json.dumps(row), flush=True)


class Properties(ctypes.Structure):
    """CUmemAllocationProp: pinned memory of device 0, no handle to share."""

    _fields_ = [
        ("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", ctypes.c_int), ("id", ctypes.c_int),
        ("security", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8),
    ]


class Access(ctypes.Structure):
    _fields_ = [("location", ctypes.c_int), ("id", ctypes.c_int), ("flags", ctypes.c_int)]


def allocator(rounds: int = 7) -> None:
    torch.zeros(1, device="cuda")
    runtime = ctypes.CDLL(f"libcudart.so.{str(torch.version.cuda).split('.')[0]}")
    driver = ctypes.CDLL("libcuda.so.1")
    for size in (MIB // 2, 2 * MIB, 20 * MIB, 128 * MIB, 512 * MIB, 2 * GIB, 8 * GIB):
        taken, given, busy = [], [], []
        for turn in range(rounds):
            pointer = ctypes.c_void_p()
            taken.append(elapsed(partial(lambda pointer, size: ok(runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size))), pointer, size)))
            if turn % 2:  # the GPU has work: cudaFree waits for it
                torch.cuda._sleep(2_000_000)
                begin = time.perf_counter()
                ok(runtime.cudaFree(pointer))
                torch.cuda.synchronize()
                busy.append((time.perf_counter() - begin) * 1e6)
            else:
                torch.cuda.synchronize()
                given.append(elapsed(partial(lambda pointer: ok(runtime.cudaFree(pointer)), pointer)))
        show("cudaMalloc", size, taken)
        show("cudaFree", size, given)
        show("cudaFree next to a kernel of 2e6 cycles", size, busy)
    failed = ctypes.c_void_p()
    huge = ctypes.c_size_t(500 * GIB)
    show("cudaMalloc that fails", 500 * GIB, [elapsed(lambda: runtime.cudaMalloc(ctypes.byref(failed), huge)) for _ in range(rounds)])
    runtime.cudaGetLastError()
    virtual(driver, rounds)


def virtual(driver: ctypes.CDLL, rounds: int) -> None:
    """Calls of expandable segments, in pieces of 2 and 20 MiB."""
    space, size = ctypes.c_uint64(), ctypes.c_size_t(4 * GIB)
    reserve = [elapsed(lambda: ok(driver.cuMemAddressReserve(ctypes.byref(space), size, ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0))))]
    show("cuMemAddressReserve", 4 * GIB, reserve)
    about, access = Properties(1, 0, 1, 0), Access(1, 0, 3)
    for piece in (2 * MIB, 20 * MIB, 200 * MIB):
        times: dict[str, list[float]] = {}
        for turn in range(rounds):
            handle, place = ctypes.c_uint64(), ctypes.c_uint64(space.value + turn * piece)
            length = ctypes.c_size_t(piece)
            steps: dict[str, Callable[[], object]] = {
                "cuMemCreate": partial(lambda h, n: ok(driver.cuMemCreate(ctypes.byref(h), n, ctypes.byref(about), ctypes.c_uint64(0))), handle, length),
                "cuMemMap": partial(lambda h, p, n: ok(driver.cuMemMap(p, n, ctypes.c_size_t(0), h, ctypes.c_uint64(0))), handle, place, length),
                "cuMemSetAccess": partial(lambda p, n: ok(driver.cuMemSetAccess(p, n, ctypes.byref(access), ctypes.c_size_t(1))), place, length),
                "cuMemUnmap": partial(lambda p, n: ok(driver.cuMemUnmap(p, n)), place, length),
                "cuMemRelease": partial(lambda h: ok(driver.cuMemRelease(h)), handle),
            }
            for name, call in steps.items():
                times.setdefault(name, []).append(elapsed(call))
        for name, us in times.items():
            show(name, piece, us)


def torch_retry() -> None:
    """An allocation for which torch's allocator first has to give back what it keeps."""
    free, _ = torch.cuda.mem_get_info()
    for count, size in ((16, GIB), (64, 256 * MIB), (256, 64 * MIB)):
        ballast = torch.empty(free - count * size - GIB, dtype=torch.uint8, device="cuda")
        kept = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(count)]
        del kept
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats()["num_alloc_retries"]
        us = elapsed(partial(lambda count, size: torch.empty(count * size // 2, dtype=torch.uint8, device="cuda"), count, size))
        retried = torch.cuda.memory_stats()["num_alloc_retries"] - before
        print(json.dumps({"name": "retry", "blocks": count, "bytes": size, "us": us, "retries": retried}), flush=True)
        del ballast
        torch.cuda.empty_cache()


# ---------------------------------------------------------------------- all of it


def everything(folder: Path, budget: float) -> None:
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    here, root = Path(__file__).resolve(), Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH", "")]))}

    def start(words: list[str]) -> str:
        begin = time.monotonic()
        try:
            done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, timeout=120, check=False)
            output, status = done.stdout, done.returncode
            error = done.stderr.strip().splitlines()[-1:] if done.returncode else []
        except subprocess.TimeoutExpired:
            output, status, error = "", -1, ["took more than 120 s"]
        spent = time.monotonic() - begin
        print(f"{spent:6.1f} s  status {status}  {' '.join(words)[-90:]}  {error}", flush=True)
        return "".join(line + "\n" for line in output.splitlines() if line.startswith("{"))

    profiled = [*PHANTORA[1:], "profile", "host", "--out", str(folder / "host.toml"), "--keep", str(folder)]
    start(profiled)
    with (folder / "host_runs.jsonl").open("a") as out:
        out.write(start([str(here), "--allocator"]))
        for which in WORKLOADS:
            if time.monotonic() - began > budget:
                print(f"{which} and what follows left out: {budget} s are over")
                break
            out.write(start([str(here), "--which", which]))
            out.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--which", choices=sorted(WORKLOADS))
    parser.add_argument("--iters", type=int, default=20)
    parser.add_argument("--allocator", action="store_true", help="cudaMalloc, cudaFree, cuMem*, a retry")
    parser.add_argument("--all", type=Path, metavar="DIR")
    parser.add_argument("--budget", type=float, default=200)
    args = parser.parse_args()
    if args.all:
        everything(args.all, args.budget)
    elif args.allocator:
        allocator()
        torch_retry()
    elif args.which:
        run(args.which, args.iters)
    else:
        parser.error("give --which, --allocator or --all")


if __name__ == "__main__":
    main()

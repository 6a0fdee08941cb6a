"""Offload, checkpoint and data jobs: torchrun --nproc-per-node N jobs.py OUT JOB... Each job writes OUT/JOB.RANK.json.

Unchanged on GPUs and under `phantora trace`. Times are of the host's clock, in seconds, after a synchronisation.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

Times = list[dict[str, Any]]

IMAGES = 64
FOLDER = os.environ.get("JOBS_FOLDER", "/tmp/jobs_files")


class Block(nn.Module):
    def __init__(self, d: int, f: int, h: int) -> None:
        super().__init__()
        self.h = h
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.w1, self.w3, self.w2 = nn.Linear(d, f, bias=False), nn.Linear(d, f, bias=False), nn.Linear(f, d, bias=False)
        self.n1, self.n2 = nn.RMSNorm(d), nn.RMSNorm(d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, s, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, d))
        n = self.n2(x)
        return x + self.w2(F.silu(self.w1(n)) * self.w3(n))


def decoder(d: int = 1024, layers: int = 12, vocab: int = 32000) -> nn.Sequential:
    return nn.Sequential(nn.Embedding(vocab, d), *(Block(d, 4 * d, d // 128) for _ in range(layers)), nn.RMSNorm(d), nn.Linear(d, vocab, bias=False))


def loss_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(ids).flatten(0, 1).float(), ids.flatten())


def now() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def tokens(batch: int, length: int = 1024) -> torch.Tensor:
    return torch.randint(0, 32000, (batch, length), device="cuda")


def cpu_adamw(times: Times) -> None:
    """Parameters in bf16 on the GPU; masters and torch's AdamW on the CPU; pinned copies both ways."""
    model = decoder().to("cuda", torch.bfloat16)
    ids = tokens(8)
    parameters = list(model.parameters())
    masters = [nn.Parameter(p.detach().float().cpu()) for p in parameters]
    staging = [torch.empty(p.shape, dtype=torch.bfloat16, pin_memory=True) for p in parameters]
    optimizer = torch.optim.AdamW(masters, lr=1e-4)
    for _ in range(7):
        began = now()
        loss_of(model, ids).backward()
        computed = now()
        for p, s in zip(parameters, staging, strict=True):
            s.copy_(p.grad, non_blocking=True)  # type: ignore[arg-type]
        torch.cuda.synchronize()
        copied = now()
        for m, s in zip(masters, staging, strict=True):
            m.grad = s.float()
        cast = now()
        optimizer.step()
        stepped = now()
        for p, m, s in zip(parameters, masters, staging, strict=True):
            s.copy_(m.detach())
            p.data.copy_(s, non_blocking=True)
            p.grad = None
        ended = now()
        times.append({"step": ended - began, "compute": computed - began, "d2h": copied - computed, "cast": cast - copied, "adamw": stepped - cast, "h2d": ended - stepped})


def torch_save(times: Times) -> None:
    """A state dict of 2.4 GiB on the GPU, saved with torch.save and read back."""
    model = decoder().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    with torch.autocast("cuda", torch.bfloat16):
        loss_of(model, tokens(4)).backward()
    optimizer.step()
    optimizer.zero_grad()
    path = f"{FOLDER}/model.pt"
    for _ in range(3):
        began = now()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        saved = now()
        torch.load(path, map_location="cpu")
        loaded = now()
        torch.load(path, map_location="cuda")
        on_gpu = now()
        times.append({"step": saved - began, "load": loaded - saved, "load to the GPU": on_gpu - loaded, "bytes": os.path.getsize(path)})
    os.unlink(path)


def safetensors_file(times: Times) -> None:
    """The weights of a model with safetensors: save, load to the host, load to the GPU."""
    from safetensors.torch import load_file, save_file

    model = decoder(layers=20).cuda()
    path = f"{FOLDER}/model.safetensors"
    for _ in range(4):
        began = now()
        save_file(model.state_dict(), path)
        saved = now()
        found = load_file(path)
        loaded = now()
        model.load_state_dict(found)
        copied = now()
        found = load_file(path, device="cuda")
        on_gpu = now()
        times.append({"step": on_gpu - began, "save": saved - began, "load": loaded - saved, "copy": copied - loaded, "load to the GPU": on_gpu - copied, "bytes": os.path.getsize(path)})
        del found
    os.unlink(path)


class Images(torch.utils.data.Dataset[Any]):
    """Images whose augmentation is NumPy and torch on the CPU."""

    def __len__(self) -> int:
        return IMAGES * 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        import numpy
        random = numpy.random.default_rng(index)
        image: Any = random.integers(0, 256, (3, 256, 256), dtype=numpy.uint8)
        at = random.integers(0, 32, 2)
        image = image[:, at[0] : at[0] + 224, at[1] : at[1] + 224].astype(numpy.float32) / 255
        image = (image - 0.45) / 0.225
        if index % 2:
            image = image[:, :, ::-1].copy()
        return torch.from_numpy(image), index % 1000


def loader(times: Times) -> None:
    """ResNet-50 fed by four workers with pinned memory."""
    import torchvision

    model = torchvision.models.resnet50().to("cuda", memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = iter(torch.utils.data.DataLoader(Images(), IMAGES, num_workers=4, pin_memory=True))
    for _ in range(48):
        began = now()
        images, labels = next(batches)
        taken = time.perf_counter()
        images, labels = images.to("cuda", non_blocking=True, memory_format=torch.channels_last), labels.to("cuda", non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ended = now()
        times.append({"step": ended - began, "batch": taken - began})


def sharded(offload: bool = False, batch: int = 8, layers: int = 12) -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    options: dict[str, Any] = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}
    if offload:
        options["offload_policy"] = CPUOffloadPolicy()
    model = decoder(layers=layers)
    if not offload:
        model.cuda()
    for block in list(model)[1:-2]:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4), tokens(batch)


def fsdp2_offload(times: Times) -> None:
    """FSDP2 with CPUOffloadPolicy; torch's AdamW on the CPU."""
    model, optimizer, ids = sharded(offload=True)
    for _ in range(7):
        began = now()
        loss_of(model, ids).backward()
        computed = now()
        optimizer.step()
        optimizer.zero_grad()
        ended = now()
        times.append({"step": ended - began, "compute": computed - began, "adamw": ended - computed})


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor, marks: dict[str, float]) -> None:
    loss = loss_of(model, ids)
    marks["forward"] = time.perf_counter()
    loss.backward()
    marks["backward"] = time.perf_counter()
    optimizer.step()
    optimizer.zero_grad()
    marks["optimizer"] = time.perf_counter()


def dcp_save(times: Times) -> None:
    """Distributed checkpoints of FSDP2: save and load, steps between them."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer, ids = sharded()
    for i in range(3):
        step_of(model, optimizer, ids, {})
        began = now()
        m, o = get_state_dict(model, optimizer)
        gathered = now()
        dcp.save({"model": m, "optimizer": o}, checkpoint_id=f"{FOLDER}/dcp{i % 2}")
        saved = now()
        dcp.load({"model": m, "optimizer": o}, checkpoint_id=f"{FOLDER}/dcp{i % 2}")
        loaded = now()
        times.append({"step": saved - began, "gather": gathered - began, "save": saved - gathered, "load": loaded - saved})


def async_save(times: Times, sums: bool = True, sync: bool = True) -> None:
    """Steps next to async_save of FSDP2's model and optimizer, every sixth step."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    torch.serialization.set_crc32_options(sums)
    model, optimizer, ids = sharded(batch=24)
    pending: Any = None
    for i in range(20):
        entry: dict[str, float] = {}
        marks: dict[str, float] = {}
        began = now()
        step_of(model, optimizer, ids, marks)
        stepped = now()
        if i % 6 == 5:
            if pending is not None:
                pending.result()
            waited = now()
            m, o = get_state_dict(model, optimizer)
            gathered = now()
            writer = dcp.FileSystemWriter(f"{FOLDER}/async{i % 2}", sync_files=sync)
            pending = dcp.async_save({"model": m, "optimizer": o, "step": i}, storage_writer=writer)
            entry = {"wait": waited - stepped, "gather": gathered - waited, "stage": now() - gathered}
        running = pending is not None and not pending.done()
        times.append({"step": stepped - began, **{name: at - began for name, at in marks.items()}, **entry, "writing": running})
    began = now()
    pending.result()
    times[-1]["last wait"] = now() - began
    torch.serialization.set_crc32_options(True)


def async_save_without_sums(times: Times) -> None:
    async_save(times, sums=False)


def async_save_without_sync(times: Times) -> None:
    async_save(times, sync=False)


def deepspeed_offload(times: Times, torch_adam: bool = True) -> None:
    """ZeRO stage 2 of DeepSpeed with the optimizer in the host's memory."""
    import deepspeed

    model = decoder()
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 8, "bf16": {"enabled": True}, "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": torch_adam}},
    }
    if not torch_adam:
        del config["zero_force_ds_cpu_optimizer"]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    ids = tokens(8)
    for _ in range(7):
        began = now()
        loss = loss_of(engine, ids)
        engine.backward(loss)
        computed = now()
        engine.step()
        ended = now()
        times.append({"step": ended - began, "compute": computed - began, "adamw": ended - computed})


def deepspeed_cpu_adam(times: Times) -> None:
    deepspeed_offload(times, torch_adam=False)


def host_memory() -> dict[str, int]:
    """KiB of this process, as the kernel counts them, and bytes that torch has pinned."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    facts: dict[str, int] = {name: int(status[name].split()[0]) for name in ("VmHWM", "VmRSS", "RssAnon", "RssFile", "RssShmem")}
    facts["pinned"] = torch.cuda.memory.host_memory_stats().get("allocated_bytes.peak", 0)
    return facts


def main() -> None:
    out, names = sys.argv[1], sys.argv[2:]
    local, world = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(local)
    if names[0].startswith("deepspeed"):
        import deepspeed

        deepspeed.init_distributed()
    else:
        dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", local))
    os.makedirs(FOLDER, exist_ok=True)
    started = host_memory()
    for name in names:
        torch.manual_seed(1)
        torch.cuda.reset_peak_memory_stats()
        times: Times = []
        try:
            globals()[name](times)
        except ImportError as error:
            times.append({"failed": repr(error)[:300]})
        steps = [t["step"] for t in times[1:] if "step" in t]
        entry = {"job": name, "rank": dist.get_rank(), "world": world, "threads": torch.get_num_threads(),
                 "median": statistics.median(steps) if steps else None, "peak": torch.cuda.max_memory_allocated(), "host": host_memory(), "host at the start": started, "times": times}
        with open(f"{out}/{name}.{dist.get_rank()}.json", "w") as file:
            json.dump(entry, file)
        if dist.get_rank() == 0:
            print(name, entry["median"], min(steps, default=0), max(steps, default=0), entry["peak"], flush=True)
        gc.collect()
        torch.cuda.empty_cache()
        dist.barrier()
    dist.barrier()
    if local == 0:
        shutil.rmtree(FOLDER, ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

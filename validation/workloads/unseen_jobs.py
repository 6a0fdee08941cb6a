"""Jobs on one GPU that no cost was fitted to before they ran: torchrun --nproc-per-node 1 unseen_jobs.py OUT JOB...

Each job writes OUT/JOB.0.json. Unchanged on GPUs and under `phantora trace`. Times are of the host's clock, in seconds, after a
synchronisation.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from validation.workloads.jobs import Times, loss_of, now

FOLDER = os.environ.get("JOBS_FOLDER", "/tmp/unseen_jobs")
BATCH = 48


class Layer(nn.Module):
    def __init__(self, d: int, h: int) -> None:
        super().__init__()
        self.h, self.n1, self.n2 = h, nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, s, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


def model_of(d: int = 1536, layers: int = 6, vocab: int = 20000) -> nn.Sequential:
    return nn.Sequential(nn.Embedding(vocab, d), *(Layer(d, d // 64) for _ in range(layers)), nn.LayerNorm(d), nn.Linear(d, vocab, bias=False))


def ids_of(batch: int, length: int = 1024, vocab: int = 20000) -> torch.Tensor:
    return torch.randint(0, vocab, (batch, length), device="cuda")


def offloaded(times: Times, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], pinned: bool) -> None:
    """bf16 weights on the GPU; float32 masters and `make`'s optimizer on the CPU. Gradients through pageable or pinned memory."""
    model = model_of().to("cuda", torch.bfloat16)
    ids, parameters = ids_of(8), list(model.parameters())
    masters: list[Any] = [nn.Parameter(p.detach().float().cpu()) for p in parameters]
    for m in masters:
        m.grad = torch.zeros_like(m)
    staging = [torch.empty(p.shape, dtype=p.dtype, pin_memory=True) for p in parameters] if pinned else []
    optimizer = make(masters)
    for _ in range(6):
        began = now()
        loss_of(model, ids).backward()
        computed = now()
        if pinned:
            for s, p in zip(staging, parameters, strict=True):
                s.copy_(p.grad, non_blocking=True)  # type: ignore[arg-type]
            torch.cuda.synchronize()
            for m, s in zip(masters, staging, strict=True):
                m.grad.copy_(s)
        else:
            for m, p in zip(masters, parameters, strict=True):
                m.grad.copy_(p.grad)
        copied = now()
        optimizer.step()
        stepped = now()
        for p, m in zip(parameters, masters, strict=True):
            p.data.copy_(m.detach())
            p.grad = None
        ended = now()
        times.append({"step": ended - began, "compute": computed - began, "gradients": copied - computed, "optimizer": stepped - copied, "weights": ended - stepped})


def cpu_sgd(times: Times) -> None:
    """SGD with momentum, lists of tensors; pageable copies."""
    offloaded(times, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True), False)


def cpu_adafactor(times: Times) -> None:
    """torch's Adafactor on four threads; pinned copies."""
    torch.set_num_threads(4)
    offloaded(times, lambda p: torch.optim.Adafactor(p, lr=1e-3), True)
    torch.set_num_threads(8)


def cpu_fused_adam(times: Times) -> None:
    """torch's fused Adam on the CPU; pageable copies."""
    offloaded(times, lambda p: torch.optim.Adam(p, lr=1e-4, fused=True), False)


def optimizer_save(times: Times) -> None:
    """Only the optimizer's state, each time to a new file; then read back."""
    model = model_of(layers=4).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    loss_of(model, ids_of(2)).backward()
    optimizer.step()
    optimizer.zero_grad()
    for i in range(3):
        path = f"{FOLDER}/optimizer{i}.pt"
        began = now()
        torch.save(optimizer.state_dict(), path)
        saved = now()
        state = torch.load(path, map_location="cpu", weights_only=True)
        loaded = now()
        optimizer.load_state_dict(state)
        ended = now()
        times.append({"step": ended - began, "save": saved - began, "load": loaded - saved, "to the GPU": ended - loaded, "bytes": os.path.getsize(path)})
        del state


def dcp_load(times: Times) -> None:
    """A distributed checkpoint of one rank, written once, loaded into the GPU several times."""
    import torch.distributed.checkpoint as dcp

    model = model_of(layers=5).cuda()
    state = {"model": model.state_dict()}
    began = now()
    dcp.save(state, checkpoint_id=f"{FOLDER}/loaded")
    saved = now()
    for i in range(4):
        at = now()
        dcp.load(state, checkpoint_id=f"{FOLDER}/loaded")
        times.append({"step": now() - at, **({"save": saved - began} if not i else {})})


def activations(times: Times, pinned: bool) -> None:
    """Activations kept on the host: torch.autograd.graph.save_on_cpu."""
    model = model_of(1024, 4, 8000).to("cuda", torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = ids_of(4, 1024, 8000)
    for _ in range(6):
        began = now()
        with torch.autograd.graph.save_on_cpu(pin_memory=pinned):
            loss = loss_of(model, ids)
        forward = now()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ended = now()
        times.append({"step": ended - began, "forward": forward - began, "backward": ended - forward})


def activations_pinned(times: Times) -> None:
    activations(times, True)


def activations_pageable(times: Times) -> None:
    activations(times, False)


class Scenes(torch.utils.data.Dataset[Any]):
    """Images whose transforms are NumPy's: crop, flip, colour, blur by sums, normalise."""

    def __len__(self) -> int:
        return BATCH * 80

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        random = np.random.default_rng(index)
        image: Any = random.integers(0, 256, (240, 240, 3), dtype=np.uint8)
        top, left = random.integers(0, 48, 2)
        image = image[top : top + 192, left : left + 192].astype(np.float32)
        if index % 3 == 0:
            image = image[:, ::-1]
        image = image * random.uniform(0.8, 1.2, 3).astype(np.float32)
        image[1:-1, 1:-1] = (image[:-2, 1:-1] + image[2:, 1:-1] + image[1:-1, :-2] + image[1:-1, 2:]) / 4
        image = (image - 120) / 60
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))), index % 100


def loader(times: Times, workers: int, pinned: bool) -> None:
    """A ResNet-34 fed by worker processes."""
    import torchvision

    model = torchvision.models.resnet34(num_classes=100).to("cuda", memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = iter(torch.utils.data.DataLoader(Scenes(), BATCH, num_workers=workers, pin_memory=pinned))
    for _ in range(60):
        began = now()
        images, labels = next(batches)
        taken = time.perf_counter()
        images, labels = images.to("cuda", non_blocking=True, memory_format=torch.channels_last), labels.to("cuda", non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        launched = time.perf_counter()
        ended = now()
        times.append({"step": ended - began, "batch": taken - began, "launch": launched - taken})


def loader8(times: Times) -> None:
    loader(times, 8, True)


def loader8_pageable(times: Times) -> None:
    loader(times, 8, False)


def loader2(times: Times) -> None:
    loader(times, 2, True)


def mapped(times: Times) -> None:
    """Layers read from mapped files of this run to the GPU one after the other: torch.load(mmap=True), safetensors, from_file."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    model = model_of(layers=6)
    state = {k: v.bfloat16() for k, v in model.state_dict().items()}
    torch.save(state, f"{FOLDER}/mapped.pt")
    save_file(state, f"{FOLDER}/mapped.safetensors")
    words = 64 << 20
    torch.from_file(f"{FOLDER}/words", shared=True, size=words, dtype=torch.int32).copy_(torch.arange(words, dtype=torch.int32))
    for _ in range(4):
        began = now()
        found = torch.load(f"{FOLDER}/mapped.pt", mmap=True, weights_only=True)
        opened = now()
        for tensor in found.values():
            tensor.cuda()
        first = now()
        with safe_open(f"{FOLDER}/mapped.safetensors", "pt", device="cuda") as file:
            names = file.keys()
            for name in names:
                file.get_tensor(name)
        second = now()
        all_words = torch.from_file(f"{FOLDER}/words", shared=True, size=words, dtype=torch.int32)
        for part in all_words.split(8 << 20):
            part.to(torch.int64).cuda()
        ended = now()
        times.append({"step": ended - began, "open": opened - began, "torch": first - opened, "safetensors": second - first, "words": ended - second})
        del found, all_words


def average(times: Times) -> None:
    """A moving average of the weights on the CPU, and gradients clipped there, next to training."""
    model = model_of(layers=5).to("cuda", torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = [p.detach().float().cpu() for p in model.parameters()]
    pinned = [torch.empty(p.shape, dtype=p.dtype, pin_memory=True) for p in model.parameters()]
    ids = ids_of(8)
    for _ in range(6):
        began = now()
        loss_of(model, ids).backward()
        optimizer.step()
        optimizer.zero_grad()
        trained = now()
        for s, p in zip(pinned, model.parameters(), strict=True):
            s.copy_(p.detach(), non_blocking=True)
        torch.cuda.synchronize()
        copied = now()
        for k, s in zip(kept, pinned, strict=True):
            k.mul_(0.99).add_(s.float(), alpha=0.01)
        averaged = now()
        norm = torch.stack([k.norm() for k in kept]).norm()
        scale = (1.0 / (norm + 1.0)).clamp(max=1.0)
        torch._foreach_mul_(kept, scale)
        ended = now()
        times.append({"step": ended - began, "train": trained - began, "d2h": copied - trained, "average": averaged - copied, "clip": ended - averaged})


def main() -> None:
    out, names = sys.argv[1], sys.argv[2:]
    torch.cuda.set_device(0)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", 0))
    os.makedirs(FOLDER, exist_ok=True)
    for name in names:
        torch.manual_seed(1)
        torch.cuda.reset_peak_memory_stats()
        times: Times = []
        began = time.perf_counter()
        globals()[name](times)
        steps = [t["step"] for t in times[1:]]
        entry = {"job": name, "rank": 0, "world": 1, "threads": torch.get_num_threads(), "median": statistics.median(steps), "seconds": time.perf_counter() - began,
                 "peak": torch.cuda.max_memory_allocated(), "gpu": torch.cuda.get_device_name(), "times": times}
        with open(f"{out}/{name}.0.json", "w") as file:
            json.dump(entry, file)
        print(name, round(entry["median"], 5), round(min(steps), 5), round(max(steps), 5), entry["peak"], round(entry["seconds"], 1), flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    dist.destroy_process_group()
    shutil.rmtree(FOLDER, ignore_errors=True)


if __name__ == "__main__":
    main()

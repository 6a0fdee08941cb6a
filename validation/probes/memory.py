"""Device memory in addition to tensors, on real GPUs: context, modules, library workspaces, communicators.

    python -m validation.probes.memory --out FILE.jsonl [--only PART ...] [--seconds N]

Prints JSON lines to FILE. Workspaces of cuDNN (convolutions, attention, batch norm) come from one GPU, what
communicators take from all GPUs of the host (up to 4). The parts: communicators, context, workspaces, and choices
(what convolutions ask for in true float32, and while cudnn.benchmark tries them).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist
import torch.nn.functional as F

from phantora.cost.parse import parse_signature, write_signature
from phantora.profile import forms
from phantora.profile.arena import Arena, Unbuildable
from phantora.profile.operator_grid import RESNET, sweep
from phantora.profile.rebuild import rebuild

PORT = 29533
SECONDS = 120.0  # for each part of workspaces
PARTS = ("communicators", "context", "workspaces", "choices")
LAYOUTS = (("bfloat16", True), ("bfloat16", False), ("float32", False), ("float32", True), ("float16", False))


def free() -> int:
    torch.cuda.synchronize()
    return int(torch.cuda.mem_get_info()[0])


def used_by(fn: Callable[[], object]) -> int:
    """Bytes of the device that `fn` leaves taken, outside torch's allocator."""
    before = free() + torch.cuda.memory_reserved()
    kept = fn()
    after = free() + torch.cuda.memory_reserved()
    del kept
    return before - after


def context(out: TextIO) -> None:
    report = _sayer(out, "context")
    torch.cuda.init()
    before = free()
    total = torch.cuda.mem_get_info()[1]
    report(what="init", bytes=total - before, total=total, gpu=torch.cuda.get_device_name())
    x = torch.ones(4096, device="cuda")
    bf = torch.randn(1024, 1024, device="cuda").bfloat16()
    q = torch.randn(1, 8, 512, 128, device="cuda", dtype=torch.bfloat16)
    image = torch.randn(8, 64, 56, 56, device="cuda")
    weight = torch.randn(64, 64, 3, 3, device="cuda")
    steps: tuple[tuple[str, Callable[[], object]], ...] = (
        ("tensors made", lambda: None),
        ("add", lambda: x + x),
        ("sum, exp, cat, softmax", lambda: (x.sum(), x.exp(), torch.cat((x, x)), x.softmax(0))),
        ("cublas mm", lambda: bf @ bf),
        ("cublas mm float32", lambda: x.view(64, 64) @ x.view(64, 64)),
        ("cublasLt addmm", lambda: F.linear(bf, bf, bf[0])),
        ("flash attention", lambda: torch.ops.aten._scaled_dot_product_flash_attention(q, q, q)),
        ("cudnn convolution", lambda: F.conv2d(image, weight, padding=1)),
        ("cudnn convolution bf16", lambda: F.conv2d(image.bfloat16(), weight.bfloat16(), padding=1)),
        ("cudnn attention", lambda: torch.ops.aten._scaled_dot_product_cudnn_attention(q, q, q, None, True)),
        ("fused adamw", lambda: torch.optim.AdamW([x.requires_grad_()], fused=True)),
    )
    for what, step in steps:
        report(what=what, bytes=used_by(step), reserved=torch.cuda.memory_reserved())


def workspaces(out: TextIO, seconds: float, calls: Iterable[Call]) -> None:
    """Bytes that a call asks of torch's allocator and gives back before it returns; `first`: while it is first tried."""
    report = _sayer(out, "workspace")
    torch.set_grad_enabled(False)
    arena = Arena(24 << 30)
    began = time.monotonic()
    for text, tf32, benchmark in calls:
        if time.monotonic() - began > seconds:
            report(signature="", error=f"stopped after {seconds:.0f} s")
            return
        arena.reset()
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = tf32, benchmark
        try:
            call = rebuild(parse_signature(text), arena)
            first, results = _taken(call.run)
            again, results = _taken(call.run)
        except (Unbuildable, RuntimeError) as error:
            report(signature=text, error=str(error).splitlines()[0][:200])
            continue
        report(signature=text, bytes=again, first=first, results=results, compute="tf32" if tf32 else "f32", benchmark=benchmark)
        del call


def _taken(run: Callable[[], object]) -> tuple[int, int]:
    """Bytes that `run` asks for next to its results, and the results'."""
    before = _requested("current")
    torch.cuda.reset_peak_memory_stats()
    result = run()
    torch.cuda.synchronize()
    peak, after = _requested("peak"), _requested("current")
    del result
    return peak - after, after - before


def _requested(which: str) -> int:
    return int(torch.cuda.memory_stats()[f"requested_bytes.all.{which}"])


LAYERS = (  # ResNet-50's, and some of ResNet-18, ViT and VGG
    *RESNET,
    (64, 128, 56, 3, 2), (64, 128, 56, 1, 2), (128, 256, 28, 3, 2), (128, 256, 28, 1, 2), (256, 512, 14, 3, 2), (256, 512, 14, 1, 2),
    (3, 768, 224, 16, 16), (3, 64, 224, 3, 1), (64, 128, 112, 3, 1), (512, 512, 14, 3, 1),
)
Call = tuple[str, bool, bool]  # signature, TF32 allowed, cudnn.benchmark


def _convolutions(batches: Sequence[int], layouts: Sequence[tuple[str, bool]]) -> list[str]:
    return [
        e.signature
        for batch in batches
        for dtype, last in layouts
        for c, k, size, tap, stride in LAYERS
        for e in forms.convolution(batch, c, k, size, tap, stride, dtype, last)
    ]


def swept() -> Iterator[Call]:
    """ResNet's convolutions, others drawn from the sweep, batch norms and attention; gradients one at a time."""
    found = _convolutions((8, 16, 32, 64, 96, 128, 256), LAYOUTS)
    for batch, c, size in ((32, 64, 112), (128, 256, 56), (64, 2048, 7)):
        for dtype, last in LAYOUTS[:4]:
            found += [e.signature for e in forms.batch_norms(batch, c, size, dtype, last)]
    for sizes in ((1, 4096, 32, 8, 128), (2, 2048, 16, 16, 64), (4, 1024, 12, 12, 64), (1, 8192, 8, 2, 128)):
        for causal in (True, False):
            found += [e.signature for e in forms.cudnn(*sizes, causal)]
    drawn = [e.signature for e in sweep() if "convolution" in e.signature]
    generator = random.Random(1)
    generator.shuffle(found)
    generator.shuffle(drawn)
    for text in _one_by_one(found + drawn):
        yield text, True, False


def choices() -> Iterator[Call]:
    for text in _one_by_one(_convolutions((16, 32, 64, 128, 256), (("float32", False),))):
        yield _reported(text, tf32=False, benchmark=False), False, False
    for text in _one_by_one(_convolutions((64, 128), LAYOUTS)):
        yield _reported(text, tf32=True, benchmark=True), True, True


def _reported(text: str, tf32: bool, benchmark: bool) -> str:
    """Forward, the operator's own arguments say whether TF32 is allowed and plans are tried; backward, torch's settings."""
    signature = parse_signature(text)
    if signature.name != "aten::cudnn_convolution":
        return text
    *tensors_to_groups, _, deterministic, _ = signature.args
    return write_signature(replace(signature, args=(*tensors_to_groups, benchmark, deterministic, tf32)))


def _one_by_one(texts: Iterable[str]) -> Iterator[str]:
    """One gradient at a time, so that each one's workspace is seen."""
    for text in texts:
        signature = parse_signature(text)
        if signature.name != "aten::convolution_backward":
            yield text
            continue
        for mask in ((True, False, False), (False, True, False)):
            yield write_signature(replace(signature, args=(*signature.args[:-1], mask)))


def communicators(rank: int, world: int, path: str) -> None:
    """Memory of communicators, operation by operation; rank 0 and the last one write."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(PORT + world), RANK=str(rank), WORLD_SIZE=str(world))
    os.environ.update(LOCAL_RANK=str(rank))
    torch.cuda.set_device(rank)
    torch.ones(8, device="cuda").add_(1)
    big = torch.zeros(world, 16 << 20, dtype=torch.bfloat16, device="cuda")
    part = torch.zeros(16 << 20, dtype=torch.bfloat16, device="cuda")
    small = torch.zeros(8, device="cuda")
    before = free() + torch.cuda.memory_reserved()
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    with open(path, "a", buffering=1) as out:
        writes = rank in (0, world - 1)
        report = _sayer(out, "communicator")
        nvls = os.environ.get("NCCL_NVLS_ENABLE", "")

        def step(what: str, fn: Callable[[], object]) -> None:
            used = used_by(fn)
            if writes:
                report(what=what, bytes=used, rank=rank, world=world, nvls=nvls)

        if writes:
            taken = before - free() - torch.cuda.memory_reserved()
            report(what="init", bytes=taken, rank=rank, world=world, nvls=nvls, nccl=torch.cuda.nccl.version())
        for name, tensor in (("8", small), ("32 Mi", part)):
            step(f"all_reduce {name}", partial(lambda tensor: dist.all_reduce(tensor), tensor))
        step("all_reduce 1 Mi", lambda: dist.all_reduce(part[: 1 << 19]))
        step("all_gather", lambda: dist.all_gather_into_tensor(big, part))
        step("reduce_scatter", lambda: dist.reduce_scatter_tensor(part, big))
        step("broadcast", lambda: dist.broadcast(part, 0))
        step("all_to_all", lambda: dist.all_to_all_single(part, part.clone()))
        if world > 1:
            ahead, behind = (rank + 1) % world, (rank - 1) % world
            step("send to the next", lambda: [
                work.wait() for work in dist.batch_isend_irecv(
                    [dist.P2POp(dist.isend, part, ahead), dist.P2POp(dist.irecv, big[0], behind)]
                )
            ])
            if rank < 2:
                step("send 0 to 1", lambda: dist.send(part, 1) if rank == 0 else dist.recv(big[0], 0))
        group = dist.new_group(list(range(world)))
        step("second group, all_reduce", lambda: dist.all_reduce(part, group=group))
        step("second group, all_gather", lambda: dist.all_gather_into_tensor(big, part, group=group))
        if world == 4:
            pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
            step("group of 2, all_reduce", lambda: dist.all_reduce(part, group=pairs[rank // 2]))
        alone = [dist.new_group([r]) for r in range(world)][rank]
        step("group of 1, all_reduce", lambda: dist.all_reduce(part, group=alone))
        dist.barrier()
    dist.destroy_process_group()


def _sayer(out: TextIO, name: str) -> Callable[..., None]:
    def report(**fields: Any) -> None:
        print(json.dumps({"name": name, **fields}), file=out, flush=True)

    return report


def _alone(_: int, path: str, what: str, seconds: float) -> None:
    with open(path, "a", buffering=1) as out:
        if what == "context":
            context(out)
        else:
            workspaces(out, seconds, swept() if what == "workspaces" else choices())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each part of workspaces")
    options = parser.parse_args()
    if len(options.only) == 1 and options.only != ["communicators"]:
        return _alone(0, str(options.out), options.only[0], options.seconds)  # no process next to this one: also under simulation
    spawn = torch.multiprocessing.spawn
    count = torch.cuda.device_count()
    if "communicators" in options.only:
        for nvls in ("0", "1"):
            os.environ["NCCL_NVLS_ENABLE"] = nvls
            for world in (1, 2, 4) if nvls == "0" else (min(count, 4),):
                if world <= count:
                    spawn(communicators, (world, str(options.out)), nprocs=world)
    for part in PARTS[1:]:
        if part in options.only:
            spawn(_alone, (str(options.out), part, options.seconds))


if __name__ == "__main__":
    main()

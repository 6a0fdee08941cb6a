"""Rates of a host's memory, copies to GPUs, files and Python's lock: python -m validation.probes.host_memory OUT.

Plain torch; one JSON line a row.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

GIB = 1 << 30
Call = Callable[[], object]


def say(name: str, **values: Any) -> None:
    with open(sys.argv[1], "a") as rows:
        print(json.dumps({"name": name, **values}), file=rows)


def timed(call: Call, rounds: int = 5, warm: int = 1) -> list[float]:
    for _ in range(warm):
        call()
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return found


def in_threads(calls: list[Call]) -> float:
    """Seconds until all calls are done, each in its own thread."""
    gate = threading.Barrier(len(calls) + 1)

    def one(call: Call) -> None:
        gate.wait()
        call()
    threads = [threading.Thread(target=one, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    gate.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def seconds_per_gib(times: list[float], size: int) -> list[float]:
    return [round(t * GIB / size, 5) for t in times]


def memory() -> None:
    size = 512 << 20
    x, y = torch.zeros(size // 4), torch.zeros(size // 4)
    for n in (1, 2, 4, 8, 16, 24, 32, 64):
        if n > (os.cpu_count() or 1):
            break
        torch.set_num_threads(n)
        say("mul_", threads=n, s_per_gib=seconds_per_gib(timed(lambda: x.mul_(1.0)), 2 * size))
        say("copy_", threads=n, s_per_gib=seconds_per_gib(timed(lambda: y.copy_(x)), 2 * size))
        say("new", threads=n, s_per_gib=seconds_per_gib(timed(lambda: x + 1.0), 2 * size))
    for n in (1, 8):
        torch.set_num_threads(n)
        for dtype in (torch.bfloat16,):
            h = torch.zeros(size // 4, dtype=dtype)
            say("to bf16", threads=n, s_per_gib=seconds_per_gib(timed(lambda: h.copy_(x)), size + size // 2))
        p = torch.zeros(32 << 20, requires_grad=True)
        p.grad = torch.zeros_like(p)
        flags: dict[str, Any]
        for name, flags in (("adamw loop", {}), ("adamw fused", {"fused": True}), ("adamw foreach", {"foreach": True})):
            adam = torch.optim.AdamW([p], **flags)  # type: ignore[arg-type]
            say(name, threads=n, parameters=p.numel(), s=[round(t, 5) for t in timed(adam.step, 3)])
            del adam
    torch.set_num_threads(1)
    for mib in (1, 4, 8, 16, 31, 33, 64):
        part = x[: mib << 18]
        say("new by size", mib=mib, s_per_gib=seconds_per_gib(timed(lambda: part + 1.0, 20, 5), 2 * (mib << 20)))
    parts = [torch.zeros(size // 4) for _ in range(4)]
    for n in (1, 8):
        torch.set_num_threads(n)

        def work(part: torch.Tensor) -> None:
            torch.set_num_threads(n)
            for _ in range(4):
                part.mul_(1.0)
        times = [in_threads([partial(work, part) for part in parts]) for _ in range(3)]
        say("mul_ by 4", threads=n, s_per_gib=seconds_per_gib(times, 4 * 4 * 2 * size))
    torch.set_num_threads(1)


def copies() -> None:
    size = 256 << 20
    torch.cuda.init()
    began = time.perf_counter()
    pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    say("pin", bytes=size, s=time.perf_counter() - began)
    began = time.perf_counter()
    second = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    say("pin again", bytes=second.numel(), s=time.perf_counter() - began)
    page, page2 = torch.zeros(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    x = torch.zeros(size, dtype=torch.uint8, device="cuda")

    def synchronised(call: Call) -> Call:
        def both() -> None:
            call()
            torch.cuda.synchronize()
        return both
    for name, call in (("h2d pinned", lambda: x.copy_(pinned, non_blocking=True)), ("d2h pinned", lambda: pinned.copy_(x, non_blocking=True)),
                       ("h2d pageable", lambda: x.copy_(page)), ("d2h pageable", lambda: page2.copy_(x)),
                       ("cpu()", lambda: x.cpu()), ("h2d new", lambda: page.cuda())):
        say(name, gpus=1, s_per_gib=seconds_per_gib(timed(synchronised(call)), size))
    small = x[: 1 << 20]
    say("cpu() 1 MiB", s=timed(lambda: small.cpu(), 20))
    n = torch.cuda.device_count()
    if n > 1:
        on = [(torch.zeros(size, dtype=torch.uint8, device=f"cuda:{i}"), torch.empty(size, dtype=torch.uint8, pin_memory=True),
               torch.zeros(size, dtype=torch.uint8)) for i in range(n)]

        def wait() -> None:
            for i in range(n):
                torch.cuda.synchronize(i)

        def several(which: str) -> None:
            for gpu, pin, _ in on:
                for _ in range(4):
                    gpu.copy_(pin, non_blocking=True) if which == "h2d" else pin.copy_(gpu, non_blocking=True)
            wait()
        for which in ("h2d", "d2h"):
            say(f"{which} pinned", gpus=n, s_per_gib=seconds_per_gib(timed(lambda: several(which), 3), 4 * size))
        for which in ("h2d", "d2h"):
            times = [in_threads([partial(g.copy_, p) if which == "h2d" else partial(p.copy_, g) for g, _, p in on]) for _ in range(3)]
            say(f"{which} pageable", gpus=n, s_per_gib=seconds_per_gib(times, size))


def files() -> None:
    import safetensors.torch
    folder = tempfile.mkdtemp(prefix="probe_", dir="/tmp")
    size = 1 << 30
    x = torch.zeros(size // 4).random_(0, 1000)
    path = os.path.join(folder, "x.pt")
    mounts = [line.split()[:3] for line in Path("/proc/mounts").read_text().splitlines()]
    say("disk", free=os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize, mount=[m for m in mounts if m[1] in ("/", "/tmp")])

    def save() -> None:
        torch.save(x, path)
    say("torch.save", s_per_gib=seconds_per_gib(timed(save, 3, 0), size))
    torch.serialization.set_crc32_options(False)
    say("torch.save without sums", s_per_gib=seconds_per_gib(timed(save, 2, 0), size))
    torch.serialization.set_crc32_options(True)

    def through() -> None:
        with open(path, "wb") as file:
            torch.save(x, file)
    say("torch.save to a file object", s_per_gib=seconds_per_gib(timed(through, 3, 0), size))
    say("torch.load", s_per_gib=seconds_per_gib(timed(lambda: torch.load(path), 3, 0), size))
    say("torch.load mmap sum", s_per_gib=seconds_per_gib(timed(lambda: torch.load(path, mmap=True).sum(), 2, 0), size))
    data = memoryview(x.numpy().data).cast("B")

    def write(name: str, sync: bool) -> tuple[float, float]:
        began = time.perf_counter()
        fd = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for at in range(0, size, 64 << 20):
            os.write(fd, data[at : at + (64 << 20)])
        written = time.perf_counter() - began
        if sync:
            os.fsync(fd)
        os.close(fd)
        return written, time.perf_counter() - began
    for name in ("a", "b"):
        os.sync()
        written, synced = write(name, True)
        say("write and fsync", files=1, write_s_per_gib=written, s_per_gib=synced)
    os.sync()
    spent = in_threads([partial(write, f"c{i}", False) for i in range(4)])
    say("write", files=4, s_per_gib=spent / 4)
    os.sync()
    spent = in_threads([partial(write, f"c{i}", True) for i in range(4)])
    say("write and fsync", files=4, s_per_gib=spent / 4)

    def read() -> None:
        fd = os.open(os.path.join(folder, "a"), os.O_RDONLY)
        target = bytearray(64 << 20)
        while os.readv(fd, [target]):
            pass
        os.close(fd)
    say("read of the page cache", s_per_gib=seconds_per_gib(timed(read, 3, 0), size))
    st = os.path.join(folder, "x.safetensors")
    say("safetensors save", s_per_gib=seconds_per_gib(timed(lambda: safetensors.torch.save_file({"x": x}, st), 3, 0), size))
    say("safetensors load", s_per_gib=seconds_per_gib(timed(lambda: safetensors.torch.load_file(st), 3, 0), size))
    say("safetensors load and sum", s_per_gib=seconds_per_gib(timed(lambda: safetensors.torch.load_file(st)["x"].sum(), 3, 0), size))
    say("safetensors load to the GPU", s_per_gib=seconds_per_gib(timed(lambda: safetensors.torch.load_file(st, device="cuda"), 3, 0), size))
    say("empty_ and sum", s_per_gib=seconds_per_gib(timed(lambda: x.sum(), 3, 0), size))
    # a thread that saves next to small operators of the main thread
    small, many = torch.zeros(64, device="cuda"), [torch.zeros(1 << 20).random_(0, 9) for _ in range(256)]

    def loop(seconds: float, sums: threading.Thread | None = None) -> tuple[int, float, float]:
        end, count, longest, before = time.perf_counter() + seconds, 0, 0.0, time.perf_counter()
        while before < end and (sums is None or sums.is_alive()):
            small.add_(1)
            count += 1
            now = time.perf_counter()
            longest, before = max(longest, now - before), now
        return count, longest, before - end + seconds
    count, longest, spent = loop(1.0)
    say("small operators alone", per_s=count / spent, longest=longest)

    found: list[tuple[float, float]] = []

    def saves(which: list[torch.Tensor]) -> None:
        began, cpu = time.perf_counter(), time.thread_time()
        with open(path, "wb") as file:
            for tensor in which:
                torch.save(tensor, file)
        found.append((time.perf_counter() - began, time.thread_time() - cpu))
    for label, which, sums in (("one of 1 GiB", [x], True), ("256 of 4 MiB", many, True), ("256 of 4 MiB without sums", many, False),
                               ("4096 of 4 KiB", [torch.zeros(1024)] * 4096, True)):
        torch.serialization.set_crc32_options(sums)
        found.clear()
        saves(which)
        thread = threading.Thread(target=saves, args=(which,))
        thread.start()
        count, longest, spent = loop(60.0, thread)
        thread.join()
        say("small operators next to torch.save", of=label, per_s=count / spent, longest=longest, seconds=spent, alone=found[0], next_to=found[1])
    torch.serialization.set_crc32_options(True)
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))


def batches() -> None:
    from validation.workloads import jobs

    data = jobs.Images()
    torch.set_num_threads(1)
    times = timed(lambda: torch.utils.data.default_collate([data[i] for i in range(jobs.IMAGES)]), 5)
    say("batch", s=times)


def operators() -> None:
    for threads in (1, 4, 8, 16):
        if threads > (os.cpu_count() or 1):
            break
        torch.set_num_threads(threads)
        for mib in (1, 8, 32, 128):
            n = mib << 18
            p, g, m, v, d = (torch.rand(n) + 0.1 for _ in range(5))
            h = torch.zeros(n, dtype=torch.bfloat16)
            for name, call in (("mul_", lambda: p.mul_(1.0)), ("copy_", lambda: p.copy_(g)), ("add_ tensor", lambda: p.add_(g)), ("lerp_", lambda: m.lerp_(g, 0.1)),
                               ("addcmul_", lambda: v.addcmul_(g, g, value=1e-9)), ("addcdiv_", lambda: p.addcdiv_(m, d, value=-1e-9)), ("sqrt new", lambda: v.sqrt()),
                               ("to bf16", lambda: h.copy_(p)), ("from bf16", lambda: p.copy_(h)), ("sum", lambda: p.sum()), ("norm", lambda: p.norm())):
                say("operator " + name, threads=threads, mib=mib, s=timed(call, 3))
    torch.set_num_threads(1)


def loaders() -> None:
    """Small operators of the main thread while a loader's batches arrive, which it drops."""
    from validation.workloads import unseen_jobs

    data = unseen_jobs.Scenes()
    torch.set_num_threads(1)
    say("batch", s=timed(lambda: torch.utils.data.default_collate([data[i] for i in range(unseen_jobs.BATCH)]), 4))
    small = torch.zeros(64, device="cuda")
    for pinned in (True, False):
        batches = iter(torch.utils.data.DataLoader(data, unseen_jobs.BATCH, num_workers=8, pin_memory=pinned))
        next(batches)
        for apart in (0.02, 0.04):
            count, waited, began = 0, 0.0, time.perf_counter()
            for _ in range(12):
                until = time.perf_counter() + apart
                while time.perf_counter() < until:
                    small.add_(1)
                    count += 1
                at = time.perf_counter()
                next(batches)
                waited += time.perf_counter() - at
            spent = time.perf_counter() - began
            say("small operators next to a loader", pinned=pinned, apart=apart, per_s=count / (spent - waited), waited=waited / 12)
        del batches


def main() -> None:
    for part in (memory, copies, operators, files, batches, loaders):
        began = time.perf_counter()
        part()
        say("part", part=part.__name__, s=time.perf_counter() - began)


if __name__ == "__main__":
    main()

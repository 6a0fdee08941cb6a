"""CUDA's semantics in virtual time, through torch.cuda and the C API: programs with fixed durations.

Kernels take 1 ms, copies 0.5 ms, memsets 0.1 ms, host calls nothing (tests/support/fixed_costs.py);
reading the clock takes 50 ns, hence the rounding to microseconds.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROLOGUE = """
import ctypes, json, os, time, torch
import torch.distributed as dist
cuda = torch.cuda
rank = int(os.environ["RANK"])
cuda.set_device(int(os.environ["LOCAL_RANK"]))
rt = ctypes.CDLL("libcudart.so." + torch.version.cuda.split(".")[0])
small, big = torch.ones(1, device="cuda"), torch.ones(1 << 26, device="cuda")
a, b, high = cuda.Stream(), cuda.Stream(), cuda.Stream(priority=-5)
blocking = ctypes.c_void_p(); rt.cudaStreamCreate(ctypes.byref(blocking))
cuda.synchronize()
def mark(stream=None):
    event = cuda.Event(enable_timing=True); event.record(stream or cuda.current_stream()); return event
def run(stream, count=1, x=small):
    with cuda.stream(stream):
        for _ in range(count): x.add_(1)
def host(begin): return round((time.perf_counter() - begin) * 1e3, 2)
def out(*values):
    print("RESULT " + json.dumps([round(v, 3) if isinstance(v, float) else v for v in values]), flush=True)
zero = mark(); begin = time.perf_counter()
default = cuda.default_stream()
"""

PROGRAMS: dict[str, tuple[str, list[object]]] = {
    "one stream is in order": ("run(a, 3); e = mark(a); cuda.synchronize(); out(zero.elapsed_time(e))", [3.0]),
    "small kernels of two streams overlap": (
        "run(a); run(b); x, y = mark(a), mark(b); cuda.synchronize(); out(zero.elapsed_time(x), zero.elapsed_time(y))",
        [1.0, 1.0],
    ),
    "kernels that fill the GPU take turns": (
        "run(a, x=big); run(b, x=big); x, y = mark(a), mark(b); cuda.synchronize()\n"
        "out(zero.elapsed_time(x), zero.elapsed_time(y))",
        [1.0, 2.0],
    ),
    "priority goes first": (
        "run(a, 2, big); time.sleep(0.0005); run(high, 1, big); x, y = mark(a), mark(high); cuda.synchronize()\n"
        "out(round(zero.elapsed_time(x), 2), round(zero.elapsed_time(y), 2))",
        [3.0, 1.5],
    ),
    "an event orders two streams": (
        "run(a, 2); e = mark(a); b.wait_event(e); run(b); y = mark(b); cuda.synchronize(); out(zero.elapsed_time(y))",
        [3.0],
    ),
    "a wait takes the record of its time": (
        "run(a); e = mark(a); b.wait_event(e); run(a); e.record(a); run(b); y = mark(b); cuda.synchronize()\n"
        "out(zero.elapsed_time(y), zero.elapsed_time(e))",
        [2.0, 2.0],
    ),
    "torch's streams ignore the default stream": (
        "run(default, 2); run(a); y = mark(a); cuda.synchronize(); out(zero.elapsed_time(y))",
        [1.0],
    ),
    "a blocking stream waits for the default stream": (
        "run(default, 2); s = cuda.ExternalStream(blocking.value); run(s); y = mark(s)\n"
        "run(default); z = mark(default)\n"
        "cuda.synchronize(); out(zero.elapsed_time(y), zero.elapsed_time(z))",
        [3.0, 4.0],
    ),
    "synchronize moves the host": ("run(a, 3); a.synchronize(); out(host(begin))", [3.0]),
    "event synchronize waits for the event alone": (
        "run(a); e = mark(a); run(a, 5); e.synchronize(); out(host(begin)); cuda.synchronize(); out(host(begin))",
        [1.0, 6.0],
    ),
    "queries turn true at the right time": (
        "run(a, 2); e = mark(a); seen = []\n"
        "for _ in range(5): seen.append(e.query()); time.sleep(0.0006)\nout(*seen, a.query())",
        [False, False, False, False, True, True],
    ),
    "item waits for kernel and copy": ("run(default, 2); small.item(); out(host(begin))", [2.5]),
    "pinned copies are asynchronous": (
        "h = torch.ones(4).pin_memory(); d = h.to('cuda', non_blocking=True); out(host(begin)); cuda.synchronize()\n"
        "out(host(begin))",
        [0.0, 0.5],
    ),
    "copies of two directions overlap, of one take turns": (
        "h = torch.ones(4).pin_memory(); g = torch.ones(4).pin_memory(); d = torch.empty(4, device='cuda')\n"
        "f = torch.empty(4, device='cuda'); zero = mark()\n"
        "with cuda.stream(a): d.copy_(h, non_blocking=True)\n"
        "with cuda.stream(b): f.copy_(g, non_blocking=True)\n"
        "with cuda.stream(high): h.copy_(small.expand(4).contiguous() if 0 else d, non_blocking=True)\n"
        "x, y, z = mark(a), mark(b), mark(high); cuda.synchronize()\n"
        "out(*(zero.elapsed_time(e) for e in (x, y, z)))",
        [0.5, 1.0, 0.5],
    ),
    "the C API: memset, elapsed time, not ready": (
        "x, y = ctypes.c_void_p(), ctypes.c_void_p()\n"
        "rt.cudaEventCreate(ctypes.byref(x)); rt.cudaEventCreate(ctypes.byref(y))\n"
        "rt.cudaEventRecord(x, blocking)\n"
        "rt.cudaMemsetAsync(ctypes.c_void_p(big.data_ptr()), 0, ctypes.c_size_t(1024), blocking)\n"
        "rt.cudaEventRecord(y, blocking); ms = ctypes.c_float()\n"
        "first = rt.cudaEventElapsedTime(ctypes.byref(ms), x, y); rt.cudaEventSynchronize(y)\n"
        "second = rt.cudaEventElapsedTime(ctypes.byref(ms), x, y); out(first, second, ms.value)",
        [600, 0, 0.1],
    ),
    "a host function runs in order": (
        "seen = []; F = ctypes.CFUNCTYPE(None, ctypes.c_void_p); f = F(lambda _: seen.append(1))\n"
        "rt.cudaLaunchHostFunc(blocking, f, None); rt.cudaStreamSynchronize(blocking); out(len(seen))",
        [1],
    ),
}


def results(directory: Path, world: int, body: str) -> list[list[object]]:
    """Values of `out`, in order of the ranks."""
    script = directory / "program.py"
    script.write_text(PROLOGUE + body)
    runner = Path(__file__).parents[1] / "support" / "fixed_costs.py"
    done = subprocess.run(
        [sys.executable, str(runner), str(world), str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"(?:\[rank(\d+)\]: )?RESULT (.*)", done.stdout)
    return [json.loads(text) for _, text in sorted(found, key=lambda item: int(item[0] or 0))]


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[object]]:
    """All programs in one process, each from an idle GPU; a marker separates their results."""
    body = ""
    for code, _ in PROGRAMS.values():
        body += "cuda.synchronize(); zero = mark(); begin = time.perf_counter()\n" + code + "\nout('---')\n"
    answers: list[list[object]] = [[]]
    for values in results(tmp_path_factory.mktemp("programs"), 1, body):
        if values == ["---"]:
            answers.append([])
        else:
            answers[-1] += values
    return dict(zip(PROGRAMS, answers, strict=False))


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(one_rank: dict[str, list[object]], name: str) -> None:
    assert one_rank[name] == PROGRAMS[name][1]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[list[object]]:
    """For each rank the ms of an all-reduce, then of a send and a receive called in each order; rank 1 comes late."""
    body = """
dist.init_process_group("nccl")
other, y = 1 - rank, torch.empty_like(big)
isend, irecv = dist.P2POp(dist.isend, big, other), dist.P2POp(dist.irecv, y, other)
def exchange(calls):
    for r in dist.batch_isend_irecv(calls): r.wait()
def timed(late, work):
    work(); cuda.synchronize(); dist.barrier(); cuda.synchronize()
    if rank: time.sleep(late)
    begin = mark(); work(); end = mark(); cuda.synchronize(); return begin.elapsed_time(end)
out(timed(0.005, lambda: dist.all_reduce(big)), timed(0.003, lambda: exchange([isend, irecv])),
    timed(0.003, lambda: exchange([irecv, isend] if rank else [isend, irecv])))
dist.destroy_process_group()
"""
    return results(tmp_path_factory.mktemp("two"), 2, body)


@pytest.mark.parametrize(("at", "late_ms"), [(0, 5.0), (1, 3.0), (2, 3.0)])
def test_two_ranks_meet(two_ranks: list[list[object]], at: int, late_ms: float) -> None:
    """The kernel of rank 0 spins until rank 1 comes, and both end together."""
    early, late = (times[at] for times in two_ranks)
    assert isinstance(early, float) and isinstance(late, float)
    assert early - late == pytest.approx(late_ms, abs=0.05)
    assert late > 0.1

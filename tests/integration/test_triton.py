"""Triton kernels of a program's own: seen at every launch, priced by their work; autotuners on virtual time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from phantora.cost.wanted import read_wanted
from tests.support import ringdump
from tests.support.runs import records, trace

FLEX = """
import torch
from torch.nn.attention.flex_attention import flex_attention
q = torch.zeros(1, 4, 1024, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
def capped(score, b, h, i, j):
    return 30 * torch.tanh(score / 30)
torch.compile(flex_attention, dynamic=False)(q, q, q, score_mod=capped).sum().backward()
torch.cuda.synchronize()
"""
KERNELS = """
import torch, triton
import triton.language as tl

@triton.jit
def softmax(y, x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * n + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=tl.arange(0, BLOCK) < n, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + at, e / tl.sum(e, axis=0), mask=tl.arange(0, BLOCK) < n)

@triton.jit
def matmul(c, a, b, n, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, n, BK):
        at = k + tl.arange(0, BK)
        total = tl.dot(tl.load(a + i[:, None] * n + at[None, :]), tl.load(b + at[:, None] * n + j[None, :]), total)
    tl.store(c + i[:, None] * n + j[None, :], total.to(tl.bfloat16))

@triton.jit
def gather(y, x, offsets, n, BLOCK: tl.constexpr):
    start, end = tl.load(offsets + tl.program_id(0)), tl.load(offsets + tl.program_id(0) + 1)
    for at in range(start, end):
        tl.store(y + at * n + tl.arange(0, BLOCK), tl.load(x + at * n + tl.arange(0, BLOCK)))
"""
PROGRAM = (
    KERNELS
    + """
x = torch.zeros(8192, 8192, device="cuda", dtype=torch.bfloat16)
y, z = torch.empty_like(x), torch.empty_like(x)
softmax[(8192,)](y, x, 8192, BLOCK=8192, num_warps=8)
matmul[(64, 32)](y, x, z, 8192, BM=128, BN=256, BK=64, num_warps=8, num_stages=3)
matmul[(256, 256)](y, x, z, 8192, BM=32, BN=32, BK=32, num_warps=4, num_stages=2)
offsets = torch.tensor([0, 100, 300, 1000], device="cuda", dtype=torch.int32)
gather[(3,)](y, x, offsets, 8192, BLOCK=8192)
flags, kept = torch.zeros(64, device="cuda", dtype=torch.int32), torch.zeros(64, device="cuda", dtype=torch.int32)
softmax[(1,)](flags, kept, 64, BLOCK=64)
flags.any().item(), kept.any().item()
top = torch.full((64,), -float("inf"), device="cuda")
softmax[(1,)](top, x, 64, BLOCK=64)
print("highest", top.amax().item())
torch.cuda.synchronize()
"""
)
TUNED = (
    KERNELS
    + """
import time
configs = [triton.Config({"BM": m, "BN": n, "BK": 64}, num_warps=8) for m, n in ((128, 256), (128, 128), (64, 64))]
tuned = triton.autotune(configs=configs, key=["n"])(matmul)
x = torch.zeros(4096, 4096, device="cuda", dtype=torch.bfloat16)
y = torch.empty_like(x)
for _ in range(3):
    tuned[lambda m: (4096 // m["BM"], 4096 // m["BN"])](y, x, x, 4096)
torch.cuda.synchronize()
print("chosen", tuned.best_config.kwargs["BM"], time.perf_counter() > 0.1)
"""
)

COMPILED = """
import threading, torch
from triton import knobs
def heard(*, src, cache_hit, **_):
    print("main" if threading.current_thread() is threading.main_thread() else "aside", "read" if cache_hit else "made")
knobs.compilation.listener = heard
torch.compile(lambda x: x.sin() + x.cos())(torch.zeros(4096, 64, device="cuda"))
torch.cuda.synchronize()
"""

CANDIDATES = """
import threading, torch
from torch.nn.attention.flex_attention import flex_attention
from triton.backends.nvidia.compiler import CUDABackend
make, both, begun, met = CUDABackend.make_cubin, threading.Barrier(2), [], []
def meeting(*args, **options):
    begun.append(threading.get_ident())
    if len(begun) <= 2:
        try:
            met.append(both.wait(60))
        except threading.BrokenBarrierError:
            met.append("nobody")
    return make(*args, **options)
CUDABackend.make_cubin = meeting
if WHAT == "templates":
    x = torch.zeros(1, 2, 1024, 64, device="cuda", dtype=torch.bfloat16)
    torch.compile(flex_attention, mode="max-autotune-no-cudagraphs")(x, x, x)
else:
    torch.compile(lambda x: x.sin(), mode="max-autotune-no-cudagraphs")(torch.zeros(4096, 64, device="cuda"))
torch.cuda.synchronize()
print("met", sorted(met), "made", len(begun))
"""


def test_launches_are_priced_by_their_work(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    run = trace(tmp_path, "train.py")
    seen = records(run.log, "kernel", "op", "start", "end", "bytes", "flops")
    rows = [r for r in seen if "triton::" in (r["op"] or "")]
    softmax, large, small, gather, *_ = rows
    assert [r["op"].removeprefix("triton::") for r in rows[:4]] == ["softmax", "matmul", "matmul", "gather"]
    assert softmax["bytes"] == 2 * 2 * 8192**2
    assert 80_000 < softmax["end"] - softmax["start"] < 130_000  # 3.35 TB/s
    assert large["flops"] == small["flops"] == 2 * 8192**3
    assert 1_111_000 < large["end"] - large["start"] < 2_500_000  # 989 TFLOP/s
    assert small["end"] - small["start"] > 2 * (large["end"] - large["start"])
    assert gather["bytes"] == pytest.approx(2 * 2 * 1000 * 8192, rel=0.01)  # the offsets are true
    assert "highest 0.0" in run.out, "infinite numbers do not outlive a kernel that stores others"
    reported = [r["name"] for r in records(run.log, "operator", "name") if r["name"].startswith("assumed: ")]
    what = [name.partition(" at train.py:")[0] for name in reported]
    assert what == ["assumed: False is read", "assumed: the real 0 is read"], "what a kernel stored is read"


def test_autotuners_take_few_launches_and_virtual_time(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TUNED)
    run = trace(tmp_path, "train.py")
    assert "chosen 128 True" in run.out
    kernels = [r for r in records(run.log, "kernel", "op", "launch") if r["op"] == "triton::matmul"]
    assert len(kernels) == 2 * 3 + 3
    tuning = [r for r in records(run.log, "annotation", "name", "start", "end") if r["name"] == "phantora: tuning"]
    inside = [r for r in kernels if any(t["start"] <= r["launch"] <= t["end"] for t in tuning)]
    assert (len(tuning), len(inside)) == (3, 6)


def test_ranks_share_compilation_and_log_the_same_with_a_full_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "train.py").write_text(TUNED)
    columns = ("rank", "op", "start", "end", "launch")
    first, second = (
        records(trace(tmp_path, "--cluster", "1x2xH100", "train.py").log, "kernel", *columns) for _ in range(2)
    )
    assert first == second
    assert len(list((tmp_path / "cache").glob("*/matmul.cubin"))) == 3  # of two ranks


def test_ranks_share_what_inductor_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It calls `triton.compile`, which is imported before the ranks are forked."""
    for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    (tmp_path / "train.py").write_text(COMPILED)
    run = trace(tmp_path, "--cluster", "1x2xH100", "train.py")
    heard = [line.partition(": ")[2] for line in run.out.splitlines()]
    assert set(heard) == {"aside made", "aside read"}
    assert heard.count("aside made") == heard.count("aside read")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU compiles one at a time")
@pytest.mark.parametrize("what", ["templates", "forms"])
def test_inductors_candidates_are_compiled_side_by_side_and_once(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`templates`: kernels of one product or attention; `forms`: block sizes of one kernel."""
    for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    (tmp_path / "train.py").write_text(f"WHAT = {what!r}\n" + CANDIDATES)
    run = trace(tmp_path, "train.py")
    made = len(list((tmp_path / "TRITON_CACHE_DIR").glob("*/*.cubin")))
    assert made > 2 and f"met [0, 1] made {made}" in run.out


def test_what_tuning_tries_is_not_missing(tmp_path: Path) -> None:
    """A list for `phantora profile` contains what the program runs: one of three candidates."""
    (tmp_path / "train.py").write_text(TUNED)
    trace(tmp_path, "--missing", "missing.jsonl", "train.py")
    wanted = [entry for entry in read_wanted(tmp_path / "missing.jsonl") if entry.operator == "triton::matmul"]
    assert [entry.count for entry in wanted] == [3]


def test_kernels_of_cuda_are_priced_by_their_tensors(tmp_path: Path) -> None:
    """Kernels that NVRTC compiles for a program; by its grid alone this sum would take 6 us. It may multiply."""
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "source = 'extern \"C\" __global__ void row_sum(float* y, const float* x, int n) {}'\n"
        "x, y = torch.zeros(8192, 8192, device='cuda'), torch.zeros(8192, device='cuda')\n"
        "kernel = torch.cuda._compile_kernel(source, 'row_sum')\n"
        "kernel((8192, 1, 1), (256, 1, 1), (y, x, 8192))\n"
        "torch.cuda.synchronize()\n"
    )
    rows = records(trace(tmp_path, "train.py").log, "kernel", "op", "name", "start", "end", "bytes", "error")
    (row,) = [r for r in rows if "row_sum" in r["name"]]
    assert (row["op"], row["bytes"]) == ("cuda::kernel", 4 * (8192 * 8192 + 8192))
    least = 4 * 8192**2 / 3350  # ns
    assert 1.5 * least < row["end"] - row["start"] < 2.5 * least and row["error"] > 5  # as kernels in the median


def test_kernels_can_be_launched_again(tmp_path: Path, stub_set: Any) -> None:
    """The part of a Triton kernel that `--missing` keeps is enough to compile and call it elsewhere; not if memory
    decides."""
    (tmp_path / "train.py").write_text(PROGRAM)
    trace(tmp_path, "--missing", "missing.jsonl", "train.py")
    text = f"""
import os
os.environ["TRITON_LIBCUDA_PATH"] = str(stubs.ensure().directory)  # as in a rank: launchers are linked to this driver
from phantora.cost.parse import parse_signature
from phantora.cost.wanted import read_wanted
from phantora.profile.arena import Arena, Unbuildable
from phantora.profile.rebuild import rebuild
from pathlib import Path
from phantora.ttir import store
store.folder = lambda: Path("/nowhere")  # another machine
arena = Arena(1 << 30)
for entry in read_wanted(Path({str(tmp_path / "missing.jsonl")!r})):
    if entry.operator.startswith("triton::"):
        try:
            rebuild(parse_signature(entry.signature), arena, entry.kernel).run()
            print(entry.operator)
        except Unbuildable as reason:
            print(entry.operator, "not:", reason)
torch.cuda.synchronize()
"""
    dump = ringdump.run_script(text, device={"memory_bytes": 4 << 30})
    assert dump.status == 0, dump.stderr
    lines = sorted(dump.value.split("\n"))
    assert [line for line in lines if "not:" not in line] == ["", *["triton::matmul"] * 2, *["triton::softmax"] * 3]
    assert [line.split(" not:")[0] for line in lines if "not:" in line] == ["triton::gather"]
    names = [record["blob"].decode() for record in dump.of("DEFINE_NAME")]
    assert {"softmax", "matmul"} <= set(names)


def test_attention_without_a_mask_visits_all_blocks(tmp_path: Path) -> None:
    """The number of blocks is a value that small kernels of Inductor store."""
    (tmp_path / "train.py").write_text(FLEX)
    run = trace(tmp_path, "train.py")
    assert "assumed: integers" not in " ".join(r["name"] for r in records(run.log, "operator", "name"))
    kernels = [r for r in records(run.log, "kernel", "op", "flops") if "tem_fused_flex_attention" in (r["op"] or "")]
    forward = 4 * 4 * 1024**2 * 64  # two products; backward four of keys and values, three of queries
    assert [r["flops"] for r in kernels] == [forward, 3.5 * forward]


POINTERS = """
import torch, triton, triton.language as tl

@triton.jit
def gather(table, out, N: tl.constexpr):
    p = tl.load(table).to(tl.pointer_type(tl.int32))
    tl.store(out + tl.arange(0, N), tl.load(p + tl.arange(0, N)))

@triton.jit
def count(p, n):
    for _ in range(tl.load(n)):
        tl.store(p, tl.load(p) + 1)

source, out = torch.arange(8, dtype=torch.int32, device="cuda"), torch.zeros(8, dtype=torch.int32, device="cuda")
gather[(1,)](torch.tensor([source.data_ptr()], dtype=torch.uint64, device="cuda"), out, 8)
first = out.tolist()
source += 1
gather[(1,)](torch.tensor([source.data_ptr()], dtype=torch.uint64, device="cuda"), out, 8)
counter = torch.ones(1, dtype=torch.int32, device="cuda")
count[(1,)](counter, torch.full((1,), 3, dtype=torch.int32, device="cuda"))
print("read", first, out.tolist(), counter.item())
"""


def test_integers_behind_loaded_pointers_and_loops_of_loaded_length(tmp_path: Path) -> None:
    """As vLLM's tables of blocks: the second launch has equal arguments, and other integers behind its pointer."""
    (tmp_path / "train.py").write_text(POINTERS)
    assert f"read {[*range(8)]} {[*range(1, 9)]} 4" in trace(tmp_path, "train.py").out

"""Kernels that frameworks launch by a shorter way from their second launch on keep their prices.

`.ci/run` also runs this under the newest torch.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.runs import records, trace

PROGRAM = """
import torch, triton
import triton.language as tl

@triton.jit
def double(y, x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

N = 1 << 24
x, y = torch.zeros(N, device="cuda"), torch.zeros(N, device="cuda")
source = 'extern "C" __global__ void row_sum(float* y, const float* x, int n) {}'
extension = torch.cuda._compile_kernel(source, "row_sum")
compiled = torch.compile(lambda x: x.sin() + 1)
trees = torch.compile(lambda x: x.cos() * 3, mode="reduce-overhead")
inside = torch.compile(lambda x, y: (double[(N // 1024,)](y, x, N, BLOCK=1024), y.exp())[1])

@torch.library.custom_op("own::rows", mutates_args=("y",))
def rows(y: torch.Tensor, x: torch.Tensor) -> None:
    extension((8192, 1, 1), (256, 1, 1), (y, x, 1))

@torch.library.triton_op("own::twice", mutates_args={})
def twice(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    torch.library.wrap_triton(double)[(N // 1024,)](y, x, N, BLOCK=1024)
    return y

fused = torch.compile(lambda x: twice(x) - 5)

def step():
    double[(N // 1024,)](y, x, N, BLOCK=1024)
    for function in (compiled, trees, twice, fused):
        function(x)
    inside(x, y)
    rows(y, x)

for _ in range(3):
    step()  # graph trees record at their second call
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    for function in (torch.tanh, compiled, fused):
        function(x)
    rows(y, x)
torch.cuda.synchronize()
for _ in range(4):
    with torch.profiler.record_function("looped"):
        step()
        graph.replay()
        torch.cuda.synchronize()
"""


def test_the_third_launch_costs_what_the_first_does(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    log = trace(tmp_path, "train.py").log
    kernels = records(log, "kernel", "start", "name", "op", "cls", "provenance", "error")
    marks = records(log, "annotation", "start", "end", "name")
    loops = [(mark["start"], mark["end"]) for mark in marks if mark["name"] == "looped"]
    columns = ("op", "cls", "provenance", "error")
    steps = [[tuple(k[c] for c in columns) for k in kernels if a <= k["start"] < b] for a, b in loops]
    assert len(steps) == 4 and steps[0] == steps[1] == steps[2] == steps[3]
    found = {op.split("::")[0]: (cls, provenance, round(error, 2)) for op, cls, provenance, error in steps[2]}
    assert found == {
        "triton": ("elementwise", "analytic", 0.43),
        "inductor": ("elementwise", "analytic", 0.43),
        "aten": ("elementwise", "measured", 0.03),
        "cuda": ("other", "analytic", 6.0),
    }
    assert sum(op.startswith(("triton::", "inductor::")) for op, *_ in steps[2]) == 11

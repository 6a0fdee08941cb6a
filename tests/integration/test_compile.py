"""torch.compile: generated kernels run, and are priced by the tensors that they read and write."""

from __future__ import annotations

from pathlib import Path

from phantora.trace.analysis.analyze import analyze
from phantora.trace.analysis.summary import lines
from phantora.trace.reader import open_log
from tests.support.runs import records, trace

PROGRAM = """
import torch

def f(x, w):
    return torch.nn.functional.gelu(x @ w) * 2 + 1

compiled = torch.compile(f)
x = torch.randn(2048, 1024, device="cuda", requires_grad=True)
w = torch.randn(1024, 4096, device="cuda", requires_grad=True)
for _ in range(2):
    compiled(x, w).square().sum().backward()
torch.cuda.synchronize()
"""


def test_generated_kernels_have_operators_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    run = trace(tmp_path, "train.py")
    seen: dict[str, list[float]] = {}
    for row in records(run.log, "kernel", "op", "bytes"):
        seen.setdefault(row["op"] or "", []).append(row["bytes"])
    fused = sorted(max(values) for name, values in seen.items() if "gelu" in name)
    elements = 2048 * 4096
    assert fused == [elements * 8, elements * 12]  # read, write; the backward pass reads the gradient as well
    assert sum(len(values) for name, values in seen.items() if name.startswith("aten::mm")) == 6


RECOMPILES = """
import torch

layer = torch.nn.Linear(64, 64).cuda()

@torch.compile(dynamic=False)
def step(x):
    return layer(x).square().sum()

optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for rows in (8, 8, 16, 16, 24, 24):
    step(torch.randn(rows, 64, device="cuda")).backward()
    optimizer.step()
    torch.cuda.synchronize()
"""


def test_recompilations_have_the_guard_that_failed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RECOMPILES)
    run = trace(tmp_path, "train.py")
    report = analyze(open_log(run.log))
    (again,) = report.recompiles
    assert (again.function, again.count) == ("step at train.py:6", 2)
    assert again.reasons == [
        f"tensor 'x' size mismatch at index 0. expected {a}, actual {b}" for a, b in ((8, 16), (16, 24))
    ]
    spans = [r for r in records(run.log, "annotation", "name", "start", "end") if r["name"] == "phantora: compiling"]
    assert len(spans) in (3, 6)  # a cache that another run has left may have the backward passes
    assert again.time == sum(r["end"] - r["start"] for r in spans[len(spans) // 3 :]) > 1e6
    assert report.headline.apart["recompile"] == [3, 5]
    assert dict(lines(report))["COMPILES"].startswith("step at train.py:6, 2 times in ")
    assert report.details is not None
    assert any(text.startswith("Recompilation: step at train.py:6") for text in report.details.findings)


ESTIMATED = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
x = torch.zeros(1 << 20, device="cuda")
dist.all_reduce(x)
try:
    with dist._time_estimator():
        dist.all_reduce(x)
except dist.DistBackendError as error:
    print(str(error).splitlines()[-1])
dist.all_reduce(x)
torch.cuda.synchronize()
print("went on")
dist.destroy_process_group()
"""


def test_an_estimate_of_nccl_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """Inductor's overlap scheduling asks for it."""
    (tmp_path / "program.py").write_text(ESTIMATED)
    run = trace(tmp_path, "--cluster", "1x2xH100", "program.py")
    assert run.out.count("ncclGroupSimulateEnd : NCCL's own time estimate is not simulated; leave out") == 2
    assert run.out.count("went on") == 2
    assert len(records(run.log, "collective", "name")) == 4

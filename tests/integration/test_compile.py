"""torch.compile: generated kernels run, and are priced by the tensors that they read and write."""

from __future__ import annotations

from pathlib import Path

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

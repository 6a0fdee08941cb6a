"""An index out of range ends the context, as the assertions of torch's CUDA kernels do."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.integration.assertions_program import ILLEGAL, LEGAL
from tests.support import runs

PROGRAM = Path(__file__).with_name("assertions_program.py")
TRITON = """import torch, triton, triton.language as tl
@triton.jit
def fill(at): tl.store(at, 3)
index = torch.full((1,), -1, device="cuda")
fill[(1,)](index)
torch.zeros(5, 4, device="cuda").index_select(0, index)
torch.cuda.synchronize()
"""

GUESS = """import torch
x = torch.randn(1024, 1024, device="cuda")
longest = int(((x @ x) > 0).sum(1).max())
last = torch.full((8, 1), longest - 1, device="cuda")
torch.zeros(8, 1024, device="cuda").gather(1, last)
torch.cuda.synchronize()
print(longest)
"""


def test_each_kernel_asserts_its_own_range(tmp_path: Path) -> None:
    run = runs.trace(tmp_path, "--", sys.executable, str(PROGRAM))
    found = dict(line.split(" -> ") for line in run.out.splitlines())
    assert found == dict.fromkeys(LEGAL, "legal") | dict.fromkeys(ILLEGAL, "CUDA error: device-side assert triggered")
    reports = [line.split(": ", 2)[2].rpartition(" at ")[0] for line in run.err.splitlines() if ": rank 0: " in line]
    assert reports == list(ILLEGAL)


def test_the_last_line_names_the_call(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\nx = torch.zeros(5, 4, device='cuda')\ny = x[torch.tensor([0, 7], device='cuda')]\n"
        "z = y.relu()\nz.sum().item()\n"
    )
    run = runs.trace(tmp_path, "train.py", check=False)
    assert run.status == 1 and run.err.splitlines()[-1] == (
        "FAILED: rank 0 at train.py:5: AcceleratorError: CUDA error: device-side assert triggered "
        "(aten::index: index 7 is outside -5 to 4 at train.py:3)"
    )


def test_what_a_kernel_without_an_operator_may_have_written_is_not_checked(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRITON)
    assert runs.trace(tmp_path, "train.py").status == 0


def test_indices_that_follow_from_an_unknown_number_are_not_checked(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(GUESS)
    run = runs.trace(tmp_path, "train.py")
    assert run.status == 0 and run.out == "0\n"


LOOKED_AT = """import sys, torch
how, n = sys.argv[1], 8_000
index = torch.randint(0, 100, (n,)).to("cuda")
wide = index[:, None].expand(-1, 4)
into, values = torch.zeros(100, 4, device="cuda"), torch.zeros(n, 4, device="cuda")
into.scatter_add_(0, wide, values)
if how == "written":
    index[7] = 100
elif how == "narrower":
    into = torch.zeros(50, 4, device="cuda")
elif how == "other":
    del index, wide
    wide = torch.full((n,), 100).to("cuda")[:, None].expand(-1, 4)
into.scatter_add_(0, wide, values)
torch.cuda.synchronize()
"""


def test_indices_that_were_looked_at_are_looked_at_again_once_they_change(tmp_path: Path) -> None:
    """Expanded ones by what lies in memory; the same ones not again, but against another size."""
    (tmp_path / "train.py").write_text(LOOKED_AT)
    assert runs.trace(tmp_path, "train.py", "same").status == 0
    for how, size in (("written", 99), ("narrower", 49), ("other", 99)):
        run = runs.trace(tmp_path, "train.py", how, check=False)
        assert run.status == 1 and f"is outside 0 to {size} at train.py:14" in run.err, how

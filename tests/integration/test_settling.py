"""The headline is the settled step: it does not depend on how many steps were run, from three on. The second one may
still contain the first step's loads of modules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from phantora.cli.diff import differences_of
from phantora.trace.analysis.analyze import Filters, analyze
from phantora.trace.diff.render import headline
from phantora.trace.reader import open_log
from tests.support.runs import trace

PROGRAM = """
import os, sys, torch, torch.nn as nn
kind, steps = sys.argv[1], int(sys.argv[2])
width, rows, layers = (256, 8, 24) if kind == "host" else (8192, 8192, 5)
model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).to("cuda", torch.bfloat16)
if kind == "ddp":
    torch.distributed.init_process_group("nccl")
    torch.cuda.set_device(torch.distributed.get_rank())
    model = nn.parallel.DistributedDataParallel(model.to(f"cuda:{torch.distributed.get_rank()}"))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
for _ in range(steps):
    model(x).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
"""


@pytest.mark.parametrize(
    ("kind", "gpus", "lengths"), [("gpu", 1, (3, 4, 25)), ("ddp", 2, (3, 5, 16)), ("host", 1, (4, 6, 25))]
)
def test_the_headline_does_not_depend_on_the_number_of_steps(
    tmp_path: Path, kind: str, gpus: int, lengths: tuple[int, ...]
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    logs = []
    for steps in lengths:
        trace(tmp_path, "--cluster", f"1x{gpus}xH100", "train.py", kind, str(steps), recording=True)
        logs.append((tmp_path / "run.arrow").rename(tmp_path / f"{steps}.arrow"))
    short, middle, long = (analyze(open_log(log), details=False).headline for log in logs)
    assert long.settled and (kind == "host" or not short.settled)
    assert short.step_time == pytest.approx(long.step_time, rel=0.01)
    assert middle.step_time == pytest.approx(long.step_time, rel=0.01)
    _, differences = differences_of([open_log(log) for log in logs], Filters())
    assert all(re.search("No difference|not significant", headline(d)) for d in differences)

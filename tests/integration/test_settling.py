"""The headline is the settled step: it does not depend on how many steps were run, from three on. The second one may
still contain the first step's loads of modules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from phantora.cli.diff import differences_of
from phantora.runs import sensitivity
from phantora.runs.replay import ReplaySpec, replay
from phantora.spec import OutputSpec
from phantora.trace.analysis.analyze import Filters, analyze
from phantora.trace.analysis.hosts import OtherHosts, other_hosts
from phantora.trace.analysis.steps import find_steps
from phantora.trace.diff.render import headline
from phantora.trace.reader import open_log
from tests.support.runs import trace

PROGRAM = """
import os, sys, torch, torch.nn as nn
kind, steps = sys.argv[1], int(sys.argv[2])
width, rows, layers = {"host": (256, 8, 24), "brief": (8192, 2048, 3)}.get(kind, (8192, 8192, 5))
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


def _other_hosts(log: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[OtherHosts, OtherHosts]:
    """Other hosts by the first steps of the recording, and by all."""
    steady = find_steps(open_log(log)).identical()
    found: list[OtherHosts | None] = []
    again = sensitivity.simulated_again

    def both(simulation: Any, setup: Any, recorded: Any, *_: Any, **__: Any) -> dict[str, Any]:
        for counted in (True, False):
            if not counted:
                monkeypatch.setattr(sensitivity, "_first_part", lambda *_: None)
            trailer = again(simulation, setup, recorded)
            assert (len(trailer["host_sensitivity"]["steps_ns"]["1"]) < len(steady)) == counted
            found.append(other_hosts(trailer, steady, 1e9))
        return {}

    with monkeypatch.context() as patched:
        patched.setattr(sensitivity, "simulated_again", both)
        replay(ReplaySpec(log=log, output=OutputSpec(path=str(log.with_name("again.arrow")))))
    part, whole = found
    assert part is not None and whole is not None
    return part, whole


@pytest.mark.parametrize(
    ("kind", "gpus", "lengths"),
    [("gpu", 1, (3, 4, 25)), ("brief", 1, (3, 5, 160)), ("ddp", 2, (3, 5, 16)), ("host", 1, (4, 6, 25))],
)
def test_the_headline_does_not_depend_on_the_number_of_steps(
    tmp_path: Path, kind: str, gpus: int, lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
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
    if kind == "gpu":
        part, whole = _other_hosts(logs[-1], monkeypatch)
        assert (part.low, part.slower) == pytest.approx((whole.low, whole.slower), rel=0.003)
    _, differences = differences_of([open_log(log) for log in logs], Filters())
    assert all(re.search("No difference|not significant", headline(d)) for d in differences)

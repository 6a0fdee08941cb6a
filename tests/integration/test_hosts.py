"""A run that is host-bound, on hosts of other speeds: simulated, replayed, and in its own summary."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from phantora.hardware import load_host
from phantora.hardware.hosts import GIVEN_SPREAD
from phantora.run_process import PHANTORA
from phantora.trace.analysis.analyze import analyze
from phantora.trace.reader import open_log
from tests.support.runs import phantora, trace

SCRIPT = """
import torch, torch.nn as nn
m = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(10)]).cuda()
o, x = torch.optim.AdamW(m.parameters()), torch.randn(8, 64, device="cuda")
for _ in range(5):
    m(x).sum().backward(); o.step(); o.zero_grad(); torch.cuda.synchronize()
"""


def test_a_host_twice_as_slow(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    (tmp_path / "fast").mkdir()
    (tmp_path / "slow").mkdir()
    fast = trace(tmp_path / "fast", str(script), recording=True)
    slow = trace(tmp_path / "slow", "--host", "2", str(script), recording=True)
    steps = [analyze(open_log(run.log)).headline for run in (fast, slow)]
    assert steps[1].step_time == pytest.approx(2 * steps[0].step_time, rel=0.02)  # it is host-bound
    reported = [headline.hosts for headline in steps]
    assert reported[0] is not None and reported[1] is not None
    assert reported[0].slower == pytest.approx(1.5 * steps[0].step_time, rel=0.02)
    assert reported[0].faster == pytest.approx(steps[0].step_time / 1.5, rel=0.02)
    assert reported[0].high == pytest.approx(load_host("default").spread[1] * steps[0].step_time, rel=0.02)
    assert (steps[0].error_above or 0) > 0.45
    of_factor = 1 - GIVEN_SPREAD[0], GIVEN_SPREAD[1] - 1
    assert (steps[1].error, steps[1].error_above) == pytest.approx(of_factor, rel=0.02)
    done = phantora("replay", "--host", "2", "-q", "-o", "again.arrow", str(fast.log), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    log = open_log(tmp_path / "again.arrow")
    assert analyze(log).headline.step_time == pytest.approx(steps[1].step_time, rel=0.005)
    assert log.metadata.extra["host"]["factor"] == pytest.approx(2 * load_host("default").factor)


COSTS = """
import time, torch
x = torch.zeros(1, device="cuda")
times = []
for size in (1 << 30, 200 << 30):
    begin = time.perf_counter()
    try:
        torch.empty(size, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass
    times.append(time.perf_counter() - begin)
for device in (None, "cuda"):
    torch.set_default_device(device)
    begin = time.perf_counter()
    for _ in range(100):
        x.grad
    times.append(time.perf_counter() - begin)
print(*times)
"""


def test_what_single_calls_cost(tmp_path: Path) -> None:
    """If memory is refused, torch gives back its cache, here a GiB, and asks a second time. The mode of
    `set_default_device` sees each call of torch."""
    script = tmp_path / "costs.py"
    script.write_text(COSTS)
    fits, refused, plain, seen = map(float, trace(tmp_path, str(script)).out.split())
    costs = load_host("default").api_ns
    call = (costs["PY_TORCH_FUNCTION"] + costs["PY_FRAME"]) * 1e-9
    assert 100 * call <= seen - plain < 120 * call
    expected = (2 * costs["MALLOC_FAIL"] + costs["FREE"] + costs["FREE_GIB"]) * 1e-9
    assert fits < 0.0002 and expected <= refused < 1.2 * expected


def test_the_probe_runs_under_the_stubs(tmp_path: Path) -> None:
    out = tmp_path / "host.toml"
    command = [*PHANTORA, "profile", "host", "--no-gpu", "--rounds", "3", "--out", str(out)]
    done = subprocess.run([*command, "--keep", str(tmp_path)], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    assert "times as slow as default" in done.stdout
    lines = [json.loads(line) for line in (tmp_path / "host_probe_stubs.jsonl").read_text().splitlines()]
    rows = {line["name"]: line for line in lines if "ns" in line}
    assert all(min(row["ns"]) > 0 and len(row["ns"]) == 3 for row in rows.values())
    assert rows["4 blocks FSDP2 step"]["kind"] == "step" and "machine" in lines[0]


EXCLUDED = """
import time
from phantora.rank.importhook import excluded
def one(i): return i + 1
def work(_): sum(one(i) for i in range(2000))
excluded(work, time); work(time)  # both are warm
clocks = [time.perf_counter_ns()]
excluded(work, time); clocks.append(time.perf_counter_ns())
work(time); clocks.append(time.perf_counter_ns())
print("clocks", clocks[1] - clocks[0], clocks[2] - clocks[1])
import torch
torch.ones(1, device="cuda")
"""


def test_what_is_done_to_a_module_after_its_import_moves_no_clock(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(EXCLUDED)
    line = next(line for line in trace(tmp_path, "script.py").out.splitlines() if "clocks" in line)
    ours, theirs = map(int, line.split()[-2:])
    assert ours < 200 and theirs > 2000  # ns


KEPT_ON_THE_HOST = """
import json, time, torch
layer = torch.nn.Linear(4096, 64, device="cuda")
x = torch.randn(4096, 4096, device="cuda")  # 64 MiB
for step in range(3):
    began = time.perf_counter()
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        y = layer(x)
    took = time.perf_counter() - began
    y.sum().backward()
print(json.dumps({"ms": took * 1e3}))
"""


def test_pinned_memory_of_hooks_is_not_filled(tmp_path: Path) -> None:
    """Memory of a hook is not filled. Memory that an operator takes for itself is: FSDP2's packing of parameters. 64
    MiB take 20 ms."""
    (tmp_path / "kept.py").write_text(KEPT_ON_THE_HOST)
    assert 1.0 < trace(tmp_path, "kept.py").report()["ms"] < 3.0  # the copy takes 1.3

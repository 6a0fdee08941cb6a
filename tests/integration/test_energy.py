"""Unmodified Zeus and CodeCarbon report the simulated energy, and so does the log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from phantora.trace.analysis.analyze import analyze
from phantora.trace.analysis.energy import priced
from phantora.trace.analysis.summary import lines
from phantora.trace.reader import open_log
from tests.support.runs import rows, trace

PROGRAM = """
import json, subprocess, time, torch
from codecarbon import OfflineEmissionsTracker
from zeus.monitor import ZeusMonitor
layer = torch.nn.Linear(4096, 4096, device="cuda", dtype=torch.bfloat16)
optimizer = torch.optim.SGD(layer.parameters())
x = torch.zeros(8192, 4096, device="cuda", dtype=torch.bfloat16)
def step():
    layer(x).sum().backward(); optimizer.step(); optimizer.zero_grad()
step()
monitor = ZeusMonitor(gpu_indices=[0])
tracker = OfflineEmissionsTracker(save_to_file=False, log_level="error", country_iso_code="USA")
tracker.start()
monitor.begin_window("rest")
time.sleep(1)
rest = monitor.end_window("rest")
monitor.begin_window("steps")
for _ in range(500):
    step()
steps = monitor.end_window("steps")
tracker.stop()
query = ["nvidia-smi", "--query-gpu=power.draw,power.limit", "--format=csv,noheader,nounits"]
smi = subprocess.run(query, capture_output=True, text=True).stdout
print(json.dumps({
    "rest": [rest.time, rest.gpu_energy[0]], "steps": [steps.time, steps.gpu_energy[0]],
    "codecarbon": tracker._total_gpu_energy.kWh * 3.6e6, "smi": [float(v) for v in smi.split(",")],
}))
"""


def test_zeus_codecarbon_and_the_log_agree(tmp_path: Path) -> None:
    pytest.importorskip("zeus")
    pytest.importorskip("codecarbon")
    (tmp_path / "train.py").write_text(PROGRAM)
    run = trace(tmp_path, "--cluster", "1x1xH100", "train.py")
    said = run.report()
    assert said["rest"][1] == pytest.approx(122.5 * said["rest"][0], rel=1e-3)  # an H100 at rest
    seconds, joules = said["steps"]
    assert said["codecarbon"] == pytest.approx(said["rest"][1] + joules, rel=0.02)
    assert said["smi"][1] == 700 and 122 < said["smi"][0] <= 730

    report = priced(analyze(open_log(run.log), details=False), 3.0)
    energy, cost = report.headline.energy, report.headline.cost
    assert energy is not None and cost is not None
    assert energy.joules_per_step == pytest.approx(energy.watts * report.headline.step_time * 1e-9)
    assert joules / seconds == pytest.approx(energy.watts, rel=0.05)  # the window begins and ends with an idle GPU
    assert cost.dollars_per_step == pytest.approx(3.0 / 3600e9 * report.headline.step_time)
    power = rows(run.log, "start", "end", "value", kinds=("power",))
    assert np.array_equal(power["start"][1:], power["end"][:-1]) and power["start"][0] == 0  # no stretch is left out
    whole = float(power["value"].sum()) * 1e-6
    assert whole > said["rest"][1] + joules


HOT = """
import sys, torch
model = torch.nn.Sequential(*(torch.nn.Linear(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
for _ in range(3):
    model(x).square().mean().backward()
    optimizer.step() if "optimizer" in sys.argv else None
    optimizer.zero_grad()
"""


def test_a_short_run_draws_no_more_than_the_cap(tmp_path: Path) -> None:
    """Its own steps draw more before the power limiter has settled."""
    (tmp_path / "train.py").write_text(HOT)
    energy = analyze(open_log(trace(tmp_path, "train.py", "optimizer", recording=True).log)).headline.energy
    assert energy is not None and 650 < energy.watts <= 701
    unsettled = analyze(open_log(trace(tmp_path, "train.py").log))
    words = dict(lines(unsettled))
    assert unsettled.headline.short and "ENERGY" not in words and "slower at the power cap" in words["STEP"]

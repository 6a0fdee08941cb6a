"""Processes of a command without a GPU say whose clock they read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phantora.launch.hook import SITE
from phantora.spec import VARIABLE, RankSpec


@pytest.mark.parametrize(
    ("script", "spec", "reported"),
    [
        ("import time; time.perf_counter()", RankSpec(session="/none"), True),
        ("print('no clock')", RankSpec(session="/none"), False),
        ("import time; time.perf_counter()", RankSpec(session="/none", joined=True), False),
        ("import time; time.perf_counter()", RankSpec(session="/none", place=0), False),
        ("import os, time; time.time(); os.fork()", RankSpec(session="/none"), True),
    ],
    ids=["driver", "no clock", "child of a rank", "rank", "forks"],
)
def test_a_driver_reads_the_clock_of_this_machine(tmp_path: Path, script: str, spec: RankSpec, reported: bool) -> None:
    path = tmp_path / "driver.py"
    path.write_text(script)
    environment = {**os.environ, VARIABLE: spec.to_json(), "PYTHONPATH": str(SITE)}
    ran = subprocess.run([sys.executable, path], env=environment, capture_output=True, text=True, check=True)
    assert ran.stderr.count("driver.py holds no GPU") == reported

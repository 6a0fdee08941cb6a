"""``phantora compare --python``: one script under two environments."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from phantora.cli.diff import differences_of
from phantora.errors import PhantoraError
from phantora.run_process import PHANTORA
from phantora.sweeps.environments import Environment, changed, environment
from phantora.trace.analysis.analyze import Filters
from phantora.trace.reader import open_log

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import torch, widths
a = torch.nn.Linear(widths.WIDTH, 8192, device="cuda")
optimizer = torch.optim.SGD(a.parameters())
for step in range(4):
    a(torch.ones(8192, widths.WIDTH, device="cuda")).sum().backward()
    optimizer.step()
"""


def made(folder: Path, version: str) -> Path:
    """An environment with the running one's packages and one of its own."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (packages / "running.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")
    for path in Path(sysconfig.get_path("purelib")).glob("*.pth"):  # of environments that are chained themselves
        (packages / path.name).write_text(path.read_text())
    (packages / "widths.py").write_text(f"WIDTH = {version} * 1024\n")
    (packages / f"widths-{version}.dist-info").mkdir()
    (packages / f"widths-{version}.dist-info" / "METADATA").write_text(f"Name: widths\nVersion: {version}\n")
    return folder


def test_the_cause_and_the_packages(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    pythons = [word for version in "48" for word in ("--python", str(made(tmp_path / version, version)))]
    command = [*PHANTORA, "compare", "--gpus", "H100", "--count", "1", *pythons, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "a -> b: widths 4 -> 8\nSlower by " in done.stdout
    assert "aten::addmm" in done.stdout
    logs = [str(path) for path in sorted((tmp_path / "compare").glob("*.arrow"))]
    _, (found,) = differences_of([open_log(path) for path in logs], Filters())
    assert 1.7 < found.step.b / found.step.a < 2.3


def test_what_is_no_environment_is_named(tmp_path: Path) -> None:
    with pytest.raises(PhantoraError, match=f"--python {tmp_path}/none: .*give an interpreter"):
        environment(f"{tmp_path}/none")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    with pytest.raises(PhantoraError, match=r"No module named 'phantora'; .* -m pip install phantora"):
        environment(f"{tmp_path}/bare")


def test_torch_comes_first_and_nvidia_last() -> None:
    a = Environment(
        python=Path("a"), packages={"aiohttp": "1", "nvidia-cublas": "13.0", "torch": "2.11.0", "same": "1"}
    )
    b = Environment(python=Path("b"), packages={"nvidia-cublas": "13.1", "torch": "2.15.0", "same": "1"})
    assert changed(a, b) == ["torch 2.11.0 -> 2.15.0", "aiohttp 1 -> -", "nvidia-cublas 13.0 -> 13.1"]

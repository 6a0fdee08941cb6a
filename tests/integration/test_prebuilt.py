"""A wheel with prebuilt stubs runs where there is no compiler; without them the compiler that is missing is named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from phantora.run_process import PHANTORA
from phantora.stubs import StubSet
from phantora.stubs.prebuilt import prebuild

ROOT = Path(__file__).parents[2]
SCRIPT = "import torch\nx = torch.ones(4096, 4096, device='cuda')\nprint('sum of one row', (x @ x)[0].sum().item())\n"
PLAT = "--config-settings=--build-option=--plat-name=linux_x86_64"


@pytest.fixture(scope="module")
def wheel(stub_set: StubSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `.ci/wheel` makes it, for the torch that is installed."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in listed:
        if not name.startswith(("tests/", "docs/", "benchmarks/", "validation/")):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    prebuild(stub_set, tree / "phantora" / "stubs" / "prebuilt")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), PLAT, str(tree)]
    subprocess.run(command, check=True)
    (made,) = out.glob("*.whl")
    return made


def run(installed: Path, home: Path, script: str) -> subprocess.CompletedProcess[str]:
    """`phantora trace` of the unpacked wheel, with an empty cache and a PATH without programs."""
    (home / "empty").mkdir(parents=True)
    (home / "script.py").write_text(script)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PHANTORA_")}
    environment |= {"PYTHONPATH": str(installed), "XDG_CACHE_HOME": str(home), "PATH": str(home / "empty")}
    command = [*PHANTORA, "trace", "--cluster", "1x1xH100", "-o", "run.arrow", "script.py"]
    return subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)


def test_no_compiler_is_needed(wheel: Path, stub_set: StubSet, tmp_path: Path) -> None:
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    done = run(tmp_path / "site", tmp_path / "home", SCRIPT)
    assert done.returncode == 0, done.stderr
    assert "sum of one row" in done.stdout and "building the stub libraries" not in done.stderr
    (unpacked,) = (tmp_path / "home" / "phantora").glob("torch-*")
    runtime = next(path for path in unpacked.iterdir() if path.name.startswith("libcudart.so"))
    assert runtime.is_symlink() and runtime.resolve().name.startswith("libcudart-")
    assert sorted(path.name for path in unpacked.glob("*.so*")) == sorted(
        path.name for path in stub_set.directory.glob("*.so*")
    )
    shutil.rmtree(tmp_path / "site" / "phantora" / "stubs" / "prebuilt")
    done = run(tmp_path / "site", tmp_path / "other", SCRIPT)
    assert done.returncode != 0 and "no gcc and no g++ on the PATH" in done.stderr


def test_a_set_of_other_sources_is_not_taken(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    source = tmp_path / "site" / "phantora" / "_stub" / "rank" / "runtime" / "ring.c"
    source.write_text(source.read_text() + "// changed\n")
    done = run(tmp_path / "site", tmp_path / "home", SCRIPT)
    assert done.returncode != 0 and "no gcc and no g++ on the PATH" in done.stderr

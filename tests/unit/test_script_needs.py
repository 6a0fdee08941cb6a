"""What a run makes of a script's packages, from its text: with made-up packages, of which none is imported."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from phantora.cli import script_needs
from phantora.cli.doctor import doctor
from phantora.errors import PhantoraError
from phantora.rank.standins.packages import PACKAGES, remedy_of

SCRIPT = """
import os, torch
from flash_attn.cute import flash_attn_func
import flash_attn.layers.rotary
import own
from pure import thing
def late():
    import apex.contrib.transducer, nowhere
    model(attn_implementation="kernels-community/vllm-flash-attn3", other="kernels-community/sonic-moe")
"""


def package(folder: Path, name: str, version: str, *modules: str) -> None:
    for module in ("__init__", *modules):
        file = folder / name / f"{module}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("raise RuntimeError('imported')\n")
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    (about / "top_level.txt").write_text(f"{name}\n")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    site, work = tmp_path / "site", tmp_path / "work"
    package(site, "flash_attn", "2.8.3", "layers/__init__", "layers/rotary")
    package(site, "pure", "1.0")
    package(site, "quack", "0.6.5")
    work.mkdir()
    (work / "train.py").write_text(SCRIPT)
    (work / "own.py").write_text("import causal_conv1d\nfrom . import other\n")
    (work / "other.py").write_text("import cutlass\n")
    (work / "requirements.txt").write_text("# comment\nquack==0.6.5\npure>=1\n")
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    return work / "train.py"


def test_packages_by_what_a_run_makes_of_them(script: Path) -> None:
    found = {need.module: need for need in script_needs.needs(script)}
    assert (found["flash_attn"].state, found["flash_attn"].version) == ("stand-in", "2.8.3")
    assert found["flash_attn.cute"].note.startswith("not installed") and found["flash_attn.cute"].state == "priced"
    assert found["apex.contrib.transducer"].state == "refused" and found["nowhere"].state == "not installed"
    assert found["kernels-community/vllm-flash-attn3"].state == "stand-in"
    assert found["kernels-community/sonic-moe"].state == "by size"
    assert "CAUSAL_CONV1D_SKIP_CUDA_BUILD=TRUE pip install" in found["causal_conv1d"].install
    assert found["cutlass"].state == "by size" and found["quack"].version == "0.6.5"
    assert not found.keys() & {"pure", "own", "other", "os", "torch"}


def test_the_command_ends_with_1_for_what_is_missing(script: Path) -> None:
    shown = CliRunner().invoke(doctor, [str(script)])
    assert shown.exit_code == 1 and re.search(r"flash_attn +2\.8\.3 +stand-in", shown.output)
    (script.parent / "small.py").write_text("import flash_attn, pure\n")
    (script.parent / "requirements.txt").unlink()
    listed = CliRunner().invoke(doctor, [str(script.parent / "small.py"), "--json"])
    assert listed.exit_code == 0 and [need["module"] for need in json.loads(listed.output)] == ["flash_attn"]


def test_a_script_that_is_no_python(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def (:\n")
    with pytest.raises(PhantoraError, match=r"broken\.py cannot be read as Python"):
        script_needs.needs(tmp_path / "broken.py")


def test_a_missing_package_ends_with_its_installation() -> None:
    error = ModuleNotFoundError("No module named 'flash_attn'", name="flash_attn")
    assert remedy_of(error).startswith("install without nvcc: FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE pip install")
    assert remedy_of(ModuleNotFoundError("", name="somewhere")) == remedy_of(ImportError("")) == ""
    assert len({each.module for each in PACKAGES}) == len(PACKAGES)

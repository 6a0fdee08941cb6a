"""The GitHub Action in a user's repository: what a pull request changes decides the verdict. Logs are prepared."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from phantora.run_process import PHANTORA
from tests.trace.test_diff import training

ACTION = Path(__file__).resolve().parents[2] / "action"
SHIM = """#!{python}
import os, shutil, sys
if sys.argv[1] == "trace":
    assert sys.argv[2:4] == ["--cluster", "1x4xH100"] and sys.argv[-2:] == ["train.py", "--small"]
    shutil.copy(os.path.join({logs!r}, open("train.py").read().strip() + ".arrow"), sys.argv[sys.argv.index("-o") + 1])
else:
    os.execv(sys.executable, [*{phantora!r}, *sys.argv[1:]])
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose branches differ in their only file, and a `phantora` that has a log for each."""
    folder = tmp_path_factory.mktemp("action")
    logs = folder / "logs"
    logs.mkdir()
    training(gemm=1000).write(logs / "base.arrow")
    training(gemm=1100).write(logs / "regression.arrow")
    training(gemm=1001).write(logs / "noise.arrow")
    unmeasured = training(gemm=1050)
    unmeasured.tables.prices[0] = replace(unmeasured.tables.prices[0], provenance="analytic", error=2.0)
    unmeasured.write(logs / "unmeasured.arrow")
    (folder / "bin").mkdir()
    command = folder / "bin" / "phantora"
    command.write_text(SHIM.format(python=sys.executable, logs=str(logs), phantora=PHANTORA))
    command.chmod(0o755)
    (folder / "repository").mkdir()
    git(folder, "init", "-q", "-b", "main")
    for branch in ("base", "regression", "noise", "unmeasured"):
        git(folder, "checkout", "-q", *(["-b", branch, "base"] if branch != "base" else ["-b", branch]))
        (folder / "repository" / "train.py").write_text(branch)
        git(folder, "add", "train.py")
        git(folder, "commit", "-q", "-m", branch)
    return folder


def git(folder: Path, *words: str) -> str:
    named = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(
        ["git", *named, *words], cwd=folder / "repository", check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.parametrize(
    ("branch", "verdict", "status"),
    [("regression", "fail", 1), ("noise", "pass", 0), ("unmeasured", "inconclusive", 0)],
)
def test_what_a_pull_request_changes_decides(place: Path, branch: str, verdict: str, status: int) -> None:
    git(place, "checkout", "-q", branch)
    output = place / f"{branch}.outputs"
    environment = {
        **os.environ,
        "PATH": f"{place / 'bin'}:{os.environ['PATH']}",
        "BASE": git(place, "rev-parse", "base"),
        "SCRIPT": "train.py --small",
        "CLUSTER": "1x4xH100",
        "LIMIT": "step:2%",
        "OPTIONS": "",
        "FOLDER": str(place / branch),
        "GITHUB_OUTPUT": str(output),
        "GITHUB_STEP_SUMMARY": str(place / "summary.md"),
        "PYTHONPATH": str(ACTION.parent),
    }
    done = subprocess.run(
        ["bash", ACTION / "judge.sh"],
        cwd=place / "repository",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert f"verdict={verdict}\n" in output.read_text()
    text = (place / branch / "comment.md").read_text()
    assert text in done.stdout and text in (place / "summary.md").read_text()
    assert f" {verdict}\n" in text and "| step (ms) |" in text
    assert git(place, "branch", "--show-current") == branch  # the checkout is as before

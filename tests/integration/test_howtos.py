"""The how-tos are followed to the letter: every command and line of Python, in one folder, in the pages' order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import runs

PAGES = Path(__file__).resolve().parents[2] / "docs" / "howto"
# The first page records the run that most others read.
ORDER = (
    "first-hour",
    "will-it-fit",
    "what-holds-my-step-up",
    "why-is-my-run-slower",
    "compare-with-a-log",
    "calibrate",
    "gate-in-ci",
    "own-gpu",
    "plan-gb200",
    "deepseek-v3-gb200",
    "find-races",
    "how-long-will-my-job-take",
    "split-training-and-rollout",
    "pandas",
    "which-machine",
    "new-torch",
    "hang-or-out-of-memory",
    "extensions-without-nvcc",
    "agents",
    "many-machines",
    "limits",
)
MOST_LINES = 60
SAID = {
    "first-hour": (
        r"FITS +\d",
        r"TRUST +\d",
        r"a step, (mean of|one steady|settled)",
        "Findings",
        "No difference|aster|lower",
    ),
    "will-it-fit": (
        "Fits: rank 0",
        "status 1",
        "FAILED +out of memory on rank 0 at samples/llama_single.py:",
        "MEMORY",
        "samples/llama.py:",
    ),
    "what-holds-my-step-up": ("Critical path", "Links, per step", r"h0\.gpu0>h0\.nvsw"),
    "why-is-my-run-slower": ("host gaps, the host works", "A real run; not in its trace", r"\nstep .* yes"),
    "compare-with-a-log": (),  # unit/test_framework_logs.py
    "calibrate": (),  # its commands need a trace of a real run
    "gate-in-ci": ("No difference",),
    "own-gpu": ("MyGPU",),
    "plan-gb200": ("NVLink over 18 hosts", "every GPU reaches every other", "Where the numbers come from"),
    "deepseek-v3-gb200": (),  # its runs take minutes
    "find-races": (),  # test_races.py runs such programs
    "how-long-will-my-job-take": ("USEFUL", "CHECKPOINTS", "ASSUMED"),
    "split-training-and-rollout": ("4 points would run",),
    "pandas": ("gemm", "compute"),
    "which-machine": (),  # unit/test_compare.py
    "new-torch": (),  # unit/test_compare.py
    "hang-or-out-of-memory": (),  # unit/test_why.py reads such files
    "extensions-without-nvcc": (),  # test_standins.py
    "agents": (),  # test_mcp.py
    "many-machines": (),  # test_nodes.py
    "limits": ("torch",),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("howto")
    (folder / "samples").symlink_to(runs.SAMPLES)
    (folder / "bin").mkdir()
    for name, started in (("phantora", "-m phantora"), ("python", "")):
        command = folder / "bin" / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" {started} "$@"\n')
        command.chmod(0o755)
    return folder


def test_all_pages_are_followed() -> None:
    assert sorted(ORDER) == sorted(page.stem for page in PAGES.glob("*.md")) == sorted(SAID)


@pytest.mark.parametrize("name", ORDER)
def test_page(place: Path, name: str) -> None:
    text = (PAGES / f"{name}.md").read_text()
    assert len(text.splitlines()) <= MOST_LINES
    blocks = re.findall(r"^```(bash|python)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    python = "\n".join(code for kind, code in blocks if kind == "python")
    shell = "\n".join(code for kind, code in blocks if kind == "bash")
    (place / "page.py").write_text(python)
    root = str(Path(__file__).resolve().parents[2])
    path = f"{place / 'bin'}:{os.environ['PATH']}"
    environment = {**runs.environment(shared=True), "PATH": path, "PYTHONPATH": root, "COLUMNS": "100"}
    said = ""
    for command in (["bash", "-euo", "pipefail", "-c", shell], [sys.executable, "page.py"]):
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, timeout=580, check=False
        )
        said += done.stdout + done.stderr
        assert done.returncode == 0, said[-3000:]
    for words in SAID[name]:
        assert re.search(words, said), (words, said[-3000:])

"""The job files of docs/howto/many-machines.md: their syntax, and the options of the command in them."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from phantora.options import places_of
from phantora.spec import TRACE

pytestmark = pytest.mark.unit
PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "many-machines.md"


def block(begin: str) -> str:
    """The block of the page that begins so."""
    (found,) = [one for one in re.findall(r"```\w*\n(.*?)```", PAGE.read_text(), re.S) if one.startswith(begin)]
    return str(found)


def check_command(text: str) -> None:
    command = re.sub(r"\\\n", " ", text[text.index("phantora trace") :]).splitlines()[0]
    words = shlex.split(command.rstrip("'"))
    known = {place.flag for place in places_of(TRACE)} | {flag for one in places_of(TRACE) for flag in one.option.flags}
    given = [word for word in words if word.startswith("-")]
    assert {"--ray", "--cluster", "-o"} <= {*given} <= known
    assert words[-1] == "train.py"


def test_slurm() -> None:
    script = block("#!/bin/bash")
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    nodes = re.search(r"#SBATCH --nodes=(\d+)", script)
    assert nodes is not None and f"--min-nodes {nodes[1]}" in script
    check_command(script)


def test_kuberay() -> None:
    job = yaml.safe_load(block("apiVersion"))
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        (container,) = group["template"]["spec"]["containers"]
        assert container["image"] == "IMAGE" and {*container["resources"]["limits"]} == {"cpu", "memory"}
    assert all({"groupName", "replicas"} <= {*group} for group in groups[1:])
    check_command(job["spec"]["entrypoint"])

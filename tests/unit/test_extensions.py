"""An installed package adds an export, a reader, a shim and a GPU: that of samples/extension."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tomllib

from phantora.run_process import PHANTORA
from tests.support.fakelog import small_run

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "extension"
PROGRAM = """
import sys
from phantora.cli.opening import log_of
from phantora.hardware import load_gpu
from phantora.importers import import_traces
from phantora.rank.shims import shims
from phantora.trace.export import export
from phantora.trace.reader import open_log

folder = sys.argv[1]
export(open_log(folder + "/run.arrow"), folder + "/steps.csv")
import_traces([folder + "/trace.csv"], folder + "/imported.arrow")
print(load_gpu("ex100").name, any(shim.distribution == "my-framework" for shim in shims()),
      open_log(folder + "/imported.arrow").words("name"), log_of(folder + "/trace.csv").metadata.real)
"""


def installed(folder: Path) -> Path:
    """As pip leaves it."""
    project = tomllib.loads((SAMPLE / "pyproject.toml").read_text())["project"]
    info = folder / "phantora_example-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [line for group, points in groups for line in (f"[{group}]", *(f"{k} = {v}" for k, v in points.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    (folder / "phantora_example").symlink_to(SAMPLE / "phantora_example")
    return folder


def test_a_package_adds_what_it_names(tmp_path: Path) -> None:
    small_run().write(tmp_path / "run.arrow")
    (tmp_path / "trace.csv").write_text("0,100,mine\n200,350,mine\n")
    path = f"{installed(tmp_path / 'site')}:{SAMPLE.parents[1]}"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": path, "PATH": ""},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Example-100 True") and "mine" in done.stdout and done.stdout.endswith("True\n")
    lines = (tmp_path / "steps.csv").read_text().splitlines()
    assert lines[0] == "step,ns" and len(lines) == 4 and lines[1].split(",")[0] == "1"


def test_a_package_that_fails_is_named(tmp_path: Path) -> None:
    site = installed(tmp_path / "site")
    info = site / "phantora_example-1.0.dist-info" / "entry_points.txt"
    info.write_text("[phantora.gpus]\nmine = no_such_module:GPUS\n")
    done = subprocess.run(
        [*PHANTORA, "cluster", "show", "1x8xH100"],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": f"{site}:{SAMPLE.parents[1]}", "PATH": ""},
    )
    assert done.returncode != 0
    assert "the package phantora-example adds no_such_module:GPUS to phantora.gpus, which fails" in done.stderr

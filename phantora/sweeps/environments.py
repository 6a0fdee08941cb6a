"""One script under several Python environments: ``phantora compare --python A --python B``.

Each run is a process of its environment, with the Phantora that is installed there: torch, the stubs and all packages
are those of the environment.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from phantora.errors import PhantoraError, cause_of
from phantora.result import first_line
from phantora.run_process import run_in_process
from phantora.spec import OutputSpec, RunSpec

_VERSIONS = (
    "import importlib.metadata as m, json, phantora\n"
    "print(json.dumps({d.metadata['Name'].lower().replace('_', '-'): d.version for d in m.distributions()}))"
)
_NAMED_FIRST = ("torch", "triton", "transformers", "phantora")


@dataclass(frozen=True, kw_only=True)
class Environment:
    """An interpreter with the versions of its packages, by lower-case name."""

    python: Path
    packages: dict[str, str]

    @property
    def torch(self) -> str:
        """Version of torch."""
        return self.packages["torch"]


def environment(path: str) -> Environment:
    """That of an interpreter, or of the folder of a virtual environment. Raises PhantoraError."""
    python = Path(os.path.abspath(path))  # not resolved: a link to the interpreter makes the environment
    if python.is_dir():
        python /= Path("bin", "python")
    try:
        done = subprocess.run([python, "-c", _VERSIONS], capture_output=True, text=True, check=False, cwd="/")
    except OSError as error:
        raise PhantoraError(f"--python {path}: {cause_of(error)}; give an interpreter or its environment") from error
    if done.returncode:
        error_line = (done.stderr.strip().splitlines() or ["it ended without a message"])[-1]
        raise PhantoraError(f"--python {path}: {error_line}; {python} -m pip install phantora")
    packages = json.loads(done.stdout)
    if "torch" not in packages:
        raise PhantoraError(f"--python {path}: it has no torch; {python} -m pip install torch")
    return Environment(python=python, packages=packages)


def run_in(environments: Sequence[Environment], spec: RunSpec, folder: Path) -> list[Path]:
    """The logs of the spec's runs, one an environment, in `folder`. Raises PhantoraError if one fails."""
    folder.mkdir(parents=True, exist_ok=True)
    logs = []
    for number, one in enumerate(environments):
        log = folder / f"{chr(ord('a') + number)}-torch-{one.torch}.arrow"
        result = run_in_process(replace(spec, output=OutputSpec(str(log), recording=False)), python=str(one.python))
        if result.status or result.log is None:
            raise PhantoraError(f"{spec.target} failed under {one.python}: {first_line(result.message)}")
        logs.append(log)
    return logs


def changed(a: Environment, b: Environment) -> list[str]:
    """``torch 2.11.0 -> 2.15.0`` for each package that differs, those that decide first; ``-`` is none."""
    names = sorted(
        {*a.packages, *b.packages}, key=lambda name: (name not in _NAMED_FIRST, name.startswith("nvidia-"), name)
    )
    pairs = ((name, a.packages.get(name, "-"), b.packages.get(name, "-")) for name in names)
    return [f"{name} {old} -> {new}" for name, old, new in pairs if old != new]

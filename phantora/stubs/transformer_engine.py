"""Tests whether the installed Transformer Engine works under the stubs, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

from phantora.stubs.find import Torch

RECIPE = "docs/frameworks/megatron.md has its installation without a GPU"
EXTENSION = "transformer-engine-torch"  # its module is inside of the package transformer_engine, or next to it
IMPORT_S = 240.0  # seconds
_IMPORT = (
    "from phantora import stubs\n"
    "library = stubs.load(stubs.ensure())\n"
    "library.ph_assume_devices(1)\n"
    "import transformer_engine.pytorch"
)


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def state(torch: Torch) -> str:
    """A line for `phantora doctor`."""
    core = f"transformer-engine-cu{(torch.cuda or '').partition('.')[0]}"
    found = {name: _version(name) for name in ("transformer-engine", core, EXTENSION)}
    if not any(found.values()):
        return f"not installed; {RECIPE}"
    missing = [name for name, number in found.items() if number is None]
    if missing:
        return f"{' and '.join(missing)} missing; {RECIPE}"
    number = found["transformer-engine"]
    try:
        done = subprocess.run(
            [sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=False, timeout=IMPORT_S
        )
    except subprocess.TimeoutExpired:
        return f"{number}: its import under the stubs took more than {IMPORT_S:.0f} s"
    if done.returncode:
        output = done.stderr.strip().splitlines()
        return f"{number} cannot be imported under the stubs: {output[-1] if output else f'status {done.returncode}'}"
    return f"{number} works: imported under the stubs"

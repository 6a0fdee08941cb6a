"""The environment that the terminal's process gives to the fork server, to a command, and to children of ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import phantora.rank
from phantora.rank.hook import PYTHON
from phantora.spec import VARIABLE, RankSpec

_RANK = Path(phantora.rank.__file__).parent
SITE = _RANK / "site"
PROGRAMS = _RANK / "bin"
"""Programs of the simulated host: nvidia-smi."""


def server_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of the fork server, which every rank starts from."""
    environment = dict(inherited)
    environment["PHANTORA"] = "1"
    environment.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    environment.setdefault("PYTHONHASHSEED", "0")  # the order of sets decides what some frameworks launch first
    environment.setdefault("MALLOC_ARENA_MAX", "1")
    # A thread of pyarrow's allocator would not survive the fork.
    environment.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    # Inductor compiles in the rank: its worker processes would look for a real GPU.
    environment["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    # It names GPUs of this machine; the ranks see those of the simulated host.
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    return environment


def command_environment(inherited: Mapping[str, str], ranks: RankSpec) -> dict[str, str]:
    """The environment for a command whose processes shall join the session of `ranks`."""
    unbuffered = {"PYTHONUNBUFFERED": inherited.get("PYTHONUNBUFFERED", "1")}  # its output goes through a pipe
    return server_environment(inherited) | follower_environment(inherited, ranks) | unbuffered


def follower_environment(inherited: Mapping[str, str], ranks: RankSpec) -> dict[str, str]:
    """The variables by which a process finds the session of `ranks`, and the programs of the simulated host."""
    return {
        VARIABLE: ranks.to_json(),
        PYTHON: sys.executable,
        "PATH": _first(PROGRAMS, inherited.get("PATH", os.defpath)),
        "PYTHONPATH": _first(SITE, inherited.get("PYTHONPATH", "")),
    }


def _first(folder: Path, paths: str) -> str:
    return os.pathsep.join((str(folder), *(path for path in paths.split(os.pathsep) if path and path != str(folder))))

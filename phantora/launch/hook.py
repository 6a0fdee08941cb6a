"""Ranks that a launcher of its own starts: ``phantora trace -- torchrun ...``.

``launch/site`` goes to the front of PYTHONPATH; its ``sitecustomize`` calls :func:`join` in every
Python process of the command. Processes without RANK (torchrun's agent) are left alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from phantora.errors import PhantoraError
from phantora.launch import process, shims
from phantora.launch.plan import server_environment

SITE = Path(__file__).with_name("site")
SESSION, DEVICES, STUBS = "PHANTORA_SESSION", "PHANTORA_DEVICES", "PHANTORA_STUBS"


def command_environment(
    inherited: Mapping[str, str], session: str, devices: int, stubs: Path, moe_routing: str
) -> dict[str, str]:
    """The environment for a launcher whose ranks shall join `session`, each seeing `devices` GPUs."""
    environment = server_environment(inherited)
    environment[SESSION] = session
    environment[DEVICES] = str(devices)
    environment[STUBS] = str(stubs)
    environment[shims.VARIABLE] = moe_routing
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(SITE), inherited.get("PYTHONPATH"))))
    return environment


def join() -> None:
    """Makes this process a rank of the session that the environment names, before its script runs."""
    process.die_with_parent(os.getppid())
    process.single_arena()
    path = os.environ.pop(SESSION)  # processes that the rank starts are not ranks
    try:
        _join(path)
    except PhantoraError as error:
        print(f"phantora: rank {os.environ['RANK']}: {error}", file=sys.stderr, flush=True)
        os._exit(error.exit_status)


def _join(path: str) -> None:
    from phantora.launch.rank import connect, report_plainly, tie_children
    from phantora.launch.stubbed import find_stubs, install_tracer, load_stubs

    try:
        session = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise PhantoraError(
            f"cannot open the simulation at {path}: {error.strerror}; is it still running?"
        ) from error
    stub_set = find_stubs(os.environ.get(STUBS))
    library = load_stubs(stub_set)
    try:
        import torch  # noqa: F401  (on the stubs; the script imports it anyway)
    except ImportError as error:
        raise PhantoraError(f"cannot import torch with {sys.executable}: {error}") from error
    install_tracer(stub_set)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    expected = _world_size(session)
    if world != expected:
        raise PhantoraError(
            f"the command started {world} ranks, but {expected} GPUs are simulated: give both the same "
            "number (`phantora trace --nnodes N --nproc-per-node N` or --cluster)"
        )
    tie_children()
    report_plainly(rank)
    shims.install()
    connect(library, session, rank, int(os.environ.get("LOCAL_RANK", "0")), int(os.environ[DEVICES]))
    process.at_exit(library.ph_exit)  # after the interpreter's teardown, which may still use CUDA


def _world_size(session: int) -> int:
    import numpy as np

    from phantora.wire import layout

    header = layout.dtype(layout.Header)
    return int(np.frombuffer(os.pread(session, header.itemsize, 0), header)["world_size"][0])

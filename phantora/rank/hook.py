"""Python processes of a command: ``phantora trace -- torchrun ...``, ``-- python spawn.py``, and children of ranks.

``rank/site`` goes to the front of PYTHONPATH; its ``sitecustomize`` calls :func:`join` in a process that a launcher
gave a RANK, and :func:`see` in every other one. Such a process sees the simulated GPUs once it imports torch, and
becomes the rank of a GPU when it first uses it (``stub/rank/joining.c``).
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import replace
from typing import Any, NoReturn

from phantora import process
from phantora.errors import PhantoraError, cause_of
from phantora.rank import failures, patches
from phantora.rank.importhook import AfterImport, after_import
from phantora.rank.patch import Rank, When
from phantora.spec import VARIABLE, rank_spec

PYTHON = "PHANTORA_PYTHON"
"""The interpreter that those programs run with."""


def join() -> None:
    """Makes this process the rank that its environment names, before its script runs."""
    process.die_with_parent(os.getppid())
    process.single_arena()
    _change(joined=True)  # processes that the rank starts are not ranks
    try:
        _join()
    except PhantoraError as error:
        _give_up(error)


def see() -> AfterImport:
    """Lets this process, which is about to import torch, see the simulated GPUs; the finder that imports it."""
    try:
        rank = _attach()
    except PhantoraError as error:
        _give_up(error)
    from phantora.rank.front_end import LATEST, follow, is_installed
    from phantora.rank.stub_loader import install_tracer

    if not is_installed():
        follow(LATEST)
    return after_import("torch".__eq__, lambda _: install_tracer(rank))


def _change(**fields: Any) -> None:
    """For this process, and for what it starts."""
    os.environ[VARIABLE] = replace(rank_spec(), **fields).to_json()


def _give_up(error: PhantoraError) -> NoReturn:
    who = f"rank {os.environ['RANK']}" if "RANK" in os.environ else f"process {os.getpid()}"
    ours = os.environ.get(PYTHON, sys.executable)
    other = "" if ours == sys.executable else f" (it runs in {sys.executable}, phantora in {ours})"
    print(f"phantora: {who}: {error}{other}", file=sys.stderr, flush=True)
    failures.note(error)
    os._exit(error.exit_status)


def open_session() -> int:
    """A descriptor of the run's shared memory. Raises PhantoraError."""
    path = rank_spec().session
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise PhantoraError(f"cannot open the simulation at {path}: {cause_of(error)}; is it still running?") from error


def _attach() -> Rank:
    from phantora.rank.main import report_plainly, tie_children
    from phantora.rank.stub_loader import find_stubs, load_stubs

    session = open_session()
    rank = load_stubs(find_stubs(rank_spec().stubs))
    attach(rank.runtime, session, may_join=not rank_spec().joined)
    report_plainly(os.environ.get("RANK", "?"))
    tie_children()
    process.name_threads()
    patches.install(When.IN_RANK, rank)
    process.at_exit(rank.runtime.ph_exit)  # does nothing unless the process has become a rank
    return rank


def attach(library: ctypes.CDLL, session: int, *, may_join: bool) -> None:
    """Lets this process see the GPUs of its host: those of the rank that started it, or else of the first."""
    library.ph_attach.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_bool, _JOINED]
    given = rank_spec()
    near = os.environ.get("RANK", "") if given.joined else ""
    if library.ph_attach(session, given.devices, int(near) if near.isdigit() else 0, may_join, _joined) != 0:
        raise PhantoraError("cannot see the simulated GPUs: is another version of phantora in the path?")


def _on_join() -> None:
    """Called by the runtime, with the interpreter's lock, when this process has become a rank."""
    import multiprocessing
    from multiprocessing import util

    from phantora.rank import clock
    from phantora.wire import stacks

    library = ctypes.CDLL(None)
    _change(place=library.ph_rank())
    clock.count_frames()
    stacks.register()
    if multiprocessing.parent_process() is not None:  # it may end with _exit, which calls no exit functions
        util.Finalize(None, library.ph_exit, args=(0,), exitpriority=-1000)


_JOINED = ctypes.CFUNCTYPE(None)
_joined = _JOINED(_on_join)  # kept alive: the runtime has its address


def _join() -> None:
    from phantora.rank.main import connect, report_plainly, tie_children
    from phantora.rank.stub_loader import find_stubs, install_tracer, load_stubs

    session = open_session()
    loaded = load_stubs(find_stubs(rank_spec().stubs))
    try:
        import torch  # noqa: F401  (on the stubs; the script imports it anyway)
    except ImportError as error:
        raise PhantoraError(f"cannot import torch with {sys.executable}: {error}") from error
    install_tracer(loaded)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    expected = _world_size(session)
    if world > expected or (world < expected and not _shares(session)):
        raise PhantoraError(
            f"the command started {world} ranks, but {expected} GPUs are simulated: give both the same "
            "number (`phantora trace --nnodes N --nproc-per-node N` or --cluster)"
        )
    other = _owner(session, rank)
    if other:
        raise PhantoraError(
            f"process {other} is rank {rank} of this run already: one run has one job, so start a second `torchrun` "
            "in a `phantora trace` of its own, or all processes by one `torchrun`"
        )
    tie_children()
    process.name_threads()
    report_plainly(str(rank))
    patches.install(When.IN_RANK, loaded)
    connect(loaded.runtime, session, rank, int(os.environ.get("LOCAL_RANK", "0")), rank_spec().devices)
    process.at_exit(loaded.runtime.ph_exit)  # after the interpreter's teardown, which may still use CUDA


def _shares(session: int) -> bool:
    """Whether several processes share GPUs: other processes than these ranks may take the places that are left."""
    return bool(_header(session)["gpus_per_host"])


def _owner(session: int, rank: int) -> int:
    """The process that is this rank and has not left it, else 0. A restarted rank follows one that has ended."""
    import numpy as np

    from phantora.wire import layout

    control = layout.dtype(layout.Control)
    start = int(_header(session)["control_offset"]) + rank * control.itemsize
    place = np.frombuffer(os.pread(session, control.itemsize, start), control)[0]
    pid = int(place["pid"])
    return pid if pid not in (0, os.getpid(), int(place["left"])) and process.runs(pid) else 0


def _world_size(session: int) -> int:
    return int(_header(session)["world_size"])


def _header(session: int) -> Any:
    import numpy as np

    from phantora.wire import layout

    header = layout.dtype(layout.Header)
    return np.frombuffer(os.pread(session, header.itemsize, 0), header)[0]

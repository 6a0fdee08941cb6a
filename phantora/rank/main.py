"""One rank's process, from fork to exit."""

from __future__ import annotations

import atexit
import builtins
import ctypes
import gc
import importlib.machinery
import io
import os
import random
import runpy
import signal
import sys
import threading
from dataclasses import dataclass, replace
from types import ModuleType, TracebackType
from typing import Any, NoReturn

from phantora import process
from phantora.errors import PhantoraError
from phantora.rank import assume, clock, failures, patches
from phantora.rank.patch import Rank, When
from phantora.spec import rank_spec
from phantora.wire import stacks

_RESET_SIGNALS = (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE)


@dataclass(frozen=True, kw_only=True)
class RankTask:
    """Everything a forked child needs to become `rank`."""

    rank: int
    local_rank: int
    environment: dict[str, str]
    """torchrun's variables, and the :class:`RankSpec`."""
    target: str
    arguments: tuple[str, ...]
    module: bool


def become_rank(task: RankTask, rank: Rank, session: int, out: int, err: int) -> NoReturn:
    """Turns this freshly forked child into a rank, runs the script and ends the process.

    `session`, `out` and `err` are descriptors.
    """
    status = 1
    try:
        _own_streams(out, err)
        _own_signals()
        tie_children()
        process.name_threads()
        os.environ.update(task.environment)
        given = rank_spec()
        _seed(given.seed + task.rank)
        assume.tell_threads()
        report_plainly(str(task.rank))
        patches.install(When.IN_RANK, replace(rank, served_port=task.environment["MASTER_PORT"]))
        connect(rank.runtime, session, task.rank, task.local_rank, given.devices)
    except PhantoraError as error:
        print(f"phantora: rank {task.rank}: {error}", file=sys.stderr, flush=True)
        failures.note(error)
        os._exit(error.exit_status)
    pid = os.getpid()
    gc.collect(1)  # its counters begin equal, whatever forked this process
    status = _run(task)
    status = _finish(status)
    if os.getpid() == pid:  # a child forked by the script ends here, too
        rank.runtime.ph_exit(status & 0xFF)
    if status == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status & 0xFF)


def connect(library: ctypes.CDLL, session: int, rank: int, local_rank: int, devices: int) -> None:
    """Takes the rank's place in the session. From here on clocks are virtual."""
    library.ph_connect.argtypes = [ctypes.c_int] * 4
    library.ph_exit.argtypes = [ctypes.c_int]
    library.ph_exit.restype = None
    ctypes.set_errno(0)
    if library.ph_connect(session, rank, local_rank, devices) != 0:
        reason = os.strerror(ctypes.get_errno()) if ctypes.get_errno() else "refused"
        raise PhantoraError(f"cannot join the simulation: {reason}; run `phantora doctor`")
    clock.count_frames()
    stacks.register()


def tie_children() -> None:
    """Makes processes that this one forks (DataLoader workers) die with it, however it dies."""
    os.register_at_fork(before=_note_forking_thread, after_in_child=_tie_child)


_forked_by_main = False
_forking_pid = 0


def _note_forking_thread() -> None:
    global _forked_by_main, _forking_pid
    _forked_by_main = threading.current_thread() is threading.main_thread()
    _forking_pid = os.getpid()


def _tie_child() -> None:
    if _forked_by_main:  # to the kernel the forking thread is the parent, and others may end early
        process.die_with_parent(_forking_pid)


def report_plainly(rank: str) -> None:
    """Prints an error of ours that ends the script as one line, and notes every such error for the run's last line."""
    excepthook = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        failures.note(error)
        if isinstance(error, PhantoraError) and not os.environ.get("PHANTORA_DEBUG"):
            print(f"phantora: rank {rank}: {error}", file=sys.stderr, flush=True)
        else:
            excepthook(kind, error, traceback)

    sys.excepthook = report


def _own_streams(out: int, err: int) -> None:
    os.dup2(out, 1)
    os.dup2(err, 2)
    for fd in (out, err):
        if fd > 2:
            os.close(fd)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # as on the terminal that it ends up on


def _own_signals() -> None:
    for number in _RESET_SIGNALS:
        signal.signal(number, signal.SIG_IGN if number == signal.SIGPIPE else signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _seed(seed: int) -> None:
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)


def _run(task: RankTask) -> int:
    """Runs the script as ``python script`` or ``python -m module`` would; returns its status."""
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv = [task.target, *task.arguments]
    sys.orig_argv = [sys.executable, *(("-m",) if task.module else ()), *sys.argv]
    try:
        if task.module:
            sys.path.insert(0, os.getcwd())
            runpy._run_module_as_main(task.target, alter_argv=True)  # type: ignore[attr-defined]
        elif os.path.isdir(task.target) or _is_archive(task.target):
            sys.path.insert(0, task.target)
            runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
        else:
            sys.path.insert(0, os.path.dirname(os.path.realpath(task.target)))
            _run_script(os.path.abspath(task.target), main)
    except SystemExit as error:
        return _exit_code(error)
    except KeyboardInterrupt as error:
        _report(error)
        return -signal.SIGINT
    except BaseException as error:
        _report(error)
        return 1
    return 0


def _is_archive(path: str) -> bool:
    import zipfile

    return not path.endswith(".py") and zipfile.is_zipfile(path)


def _run_script(path: str, main: ModuleType) -> None:
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    main.__file__ = path
    main.__loader__ = loader
    main.__spec__ = None
    main.__dict__["__cached__"] = None
    with io.open_code(path) as file:
        source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)  # noqa: S102 (the user's script itself)


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        if error.code & 0xFF:
            failures.note(error)
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    failures.note(error)
    return 1


def _report(error: BaseException) -> None:
    """Prints the traceback as the interpreter does, from the script's first frame on."""
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None and _is_ours(traceback.tb_frame.f_code.co_filename):
        traceback = traceback.tb_next
    # A SyntaxError in the script itself has no frame of the script.
    sys.excepthook(type(error), error.with_traceback(traceback), traceback)


def _is_ours(filename: str) -> bool:
    return filename in (__file__, runpy.__file__, "<frozen runpy>")


def _finish(status: int) -> int:
    """Does the interpreter's work at exit, without tearing down torch.

    Ending with ``_exit`` leaves the pages shared with the other ranks untouched; a real teardown
    writes to all of them. The script's globals are dropped, so that its destructors run, and every
    open file is flushed.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except SystemExit as error:
        status = _exit_code(error)
    except KeyboardInterrupt:
        status = -signal.SIGINT
    except BaseException as error:
        _report(error)
    if threading.active_count() == 1:  # daemon threads may still use the globals
        _empty(sys.modules.get("__main__"))
    gc.collect()
    for kind in (io.TextIOWrapper, io.BufferedWriter):  # text first: it writes into the buffers
        for stream in gc.get_objects():
            if issubclass(type(stream), kind):  # a weak proxy would ask what it stood for
                _flush(stream)
    for standard in (sys.stdout, sys.stderr):
        if not _flush(standard):
            status = status or 120  # what CPython reports when stdout cannot be flushed
    process.flush_c_streams()
    return status


def _flush(stream: Any) -> bool:
    try:
        if stream is not None and not stream.closed:
            stream.flush()
    except (OSError, ValueError, AttributeError):
        return False
    return True


def _empty(module: Any) -> None:
    """Sets a module's globals to None, names with one leading underscore first, as CPython does."""
    namespace = getattr(module, "__dict__", None)
    if not isinstance(module, ModuleType) or not isinstance(namespace, dict):
        return
    for underscored in (True, False):
        for name in list(namespace):
            single = name.startswith("_") and not name.startswith("__")
            if name != "__builtins__" and single == underscored:
                namespace[name] = None

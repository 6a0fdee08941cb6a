"""Small facts and calls about Linux processes that the standard library does not offer.

It runs in the terminal's process, in the fork server and in ranks.
"""

from __future__ import annotations

import _thread
import atexit
import ctypes
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_GET_NAME = 16
_PR_SET_CHILD_SUBREAPER = 36
_M_ARENA_MAX = -8
_ADDR_NO_RANDOMIZE = 0x0040000
_PERSONALITY_UNCHANGED = 0xFFFFFFFF
_AUTOGRAD = b"pt_autograd"
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Makes the kernel send SIGKILL to this process when the thread that made it ends.

    `parent` is the process that was the parent at the fork: if it is gone already, no signal will
    come, so this process ends itself at once.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def fixed_addresses() -> Iterator[None]:
    """Programs that the calling thread starts in here have the same addresses in each run (personality(2)).

    The hash of a class is its address, so the order of a set of classes is too, and with it how many frames of Python a
    loop over that set runs: the package `regex` moved later rows of a log by 20 to 90 ns. Where the system does not
    allow it (a container's filter), addresses stay random, and `phantora doctor` reports it.
    """
    before = _libc.personality(_PERSONALITY_UNCHANGED)
    if before != -1:
        _libc.personality(before | _ADDR_NO_RANDOMIZE)
    try:
        yield
    finally:
        if before != -1:
            _libc.personality(before)


def addresses_are_fixed() -> bool:
    """True if the system allows :func:`fixed_addresses`."""
    with fixed_addresses():
        now = _libc.personality(_PERSONALITY_UNCHANGED)
    return now != -1 and bool(now & _ADDR_NO_RANDOMIZE)


def adopt_orphans(wanted: bool = True) -> None:
    """Makes this process the parent of descendants whose own parent ends, so that it can end them."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)


def name_thread(name: str) -> None:
    """The system's name of the calling thread: 15 characters at most."""
    _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def _plainly(start: Callable[..., Any]) -> Callable[..., Any]:
    def started(*arguments: Any, **options: Any) -> Any:
        own = ctypes.create_string_buffer(16)
        _libc.prctl(_PR_GET_NAME, own, 0, 0, 0)
        if not own.value.startswith(_AUTOGRAD):
            return start(*arguments, **options)
        name_thread("python")
        try:
            return start(*arguments, **options)
        finally:
            _libc.prctl(_PR_SET_NAME, own, 0, 0, 0)

    return started


def name_threads() -> None:
    """Keeps Python's threads that a thread of autograd starts (in a hook, in a backward function) from taking its name.

    A thread inherits it, and by its name the runtime takes it for one of autograd, which moves the clock
    (``stub/rank/runtime/state.c``).
    """
    for module in (_thread, threading):
        for name in ("start_new_thread", "_start_new_thread", "start_joinable_thread", "_start_joinable_thread"):
            if hasattr(module, name):
                setattr(module, name, _plainly(getattr(module, name)))


def single_arena() -> None:
    """One malloc arena: threads of a rank share it instead of reserving 64 MiB each."""
    _libc.mallopt(_M_ARENA_MAX, 1)


def release_free_memory() -> None:
    """Gives what malloc keeps back to the system."""
    _libc.malloc_trim(0)


def flush_c_streams() -> None:
    """Flushes stdio as ``exit(3)`` does; needed because ranks end with ``_exit``."""
    _libc.fflush(None)


def at_exit(function: Any) -> None:
    """Makes ``exit(3)`` call the C function `function` with the exit status, before libraries are torn down."""
    _libc.on_exit(ctypes.cast(function, ctypes.c_void_p), None)


def leave(status: int) -> NoReturn:
    """Ends this process as the interpreter does, but for the end of modules and objects, which takes 50 ms."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    flush_c_streams()
    os._exit(status)


def thread_count() -> int:
    """Threads of this process."""
    return len(os.listdir("/proc/self/task"))


def raise_descriptor_limit() -> None:
    """Two pipes per rank: allow as many descriptors as the system lets us."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # the hard limit may be above what the kernel grants
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def children_by_parent() -> dict[int, list[int]]:
    """Every process of the machine by its parent, from ``/proc``."""
    table: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields and fields[0] != b"Z":
            table.setdefault(int(fields[1]), []).append(int(entry))
    return table


def descendants(pid: int) -> list[int]:
    """All living descendants of `pid`, children before grandchildren."""
    return with_descendants([pid])[1:]


def with_descendants(pids: Iterable[int]) -> list[int]:
    """`pids` and all living descendants of theirs, children before grandchildren."""
    table = children_by_parent()
    front = list(pids)
    found = [*front]
    while front:
        front = [child for parent in front for child in table.get(parent, [])]
        found += front
    return found


def proportional_bytes(pid: int) -> int:
    """Memory of a process; pages that several share count in equal parts. 0 if it has ended, or is another user's."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def kill_descendants() -> None:
    """Ends everything that this process started and that still lives, and reaps it."""
    for _ in range(100):
        left = descendants(os.getpid())
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, 0 if left else os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if not left:
            return


def runs(pid: int) -> bool:
    """Whether this process exists, and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def signal_name(number: int) -> str:
    """``SIGTERM``, or ``signal 99`` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_exit(code: int) -> str:
    """`code` as ``os.waitstatus_to_exitcode`` gives it: negative for signals."""
    if code >= 0:
        return f"exited with status {code}"
    name = signal_name(-code)
    hint = " (was it the out-of-memory killer? see dmesg)" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


def shell_status(code: int) -> int:
    """The exit status a shell would report: 128 + n for signal n."""
    return code if code >= 0 else 128 - code

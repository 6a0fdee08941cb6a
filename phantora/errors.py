"""The one exception type that reaches a user, printed once as a single line, and the reasons for which a run ends."""

from __future__ import annotations

import enum
import errno
import os
import re
from collections.abc import Iterable

NO_FOLD = "--fold off"
"""The remedy that every refusal of a fold names, also one of the engine or of the stubs."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_THREAD = ("can't start new thread", "Failed to launch worker thread")  # Python, Arrow
_OUT_OF_MEMORY = "OutOfMemoryError"  # torch's
# Messages of libraries whose own allocations fail.
_NO_ROOM = re.compile(
    r"Cuda failure 2 'out of memory'|CUDA error: out of memory|_ALLOC_FAILED|DEVICE_ALLOCATION_FAILED"
)


class Reason(str, enum.Enum):
    """Why a run ended."""

    OK = "ok"
    OUT_OF_MEMORY = "out of memory"
    """A simulated GPU is out of memory."""
    CANNOT_FOLD = "cannot fold"
    DISK_FULL = "disk full"
    HANG = "hang"
    UNSUPPORTED = "unsupported"
    """A call that is not simulated."""
    NO_GPU_WORK = "no work on a GPU"
    INTERRUPTED = "interrupted"
    REFUSED = "refused"
    """The request cannot be run."""
    SCRIPT_FAILED = "script failed"
    STARTS_RANKS = "starts ranks"
    """A script that runs once per GPU starts a rank per GPU itself."""


class PhantoraError(Exception):
    """An error that the user can fix. The message has what, where, and how to fix it."""

    exit_status = 1

    def __init__(self, message: str = "", reason: Reason = Reason.REFUSED) -> None:
        super().__init__(message)
        self.reason = reason


def known_names(name: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown name: ``did you mean fsdp2? known: ddp, fsdp2``."""
    import difflib

    names = list(names)
    close = difflib.get_close_matches(name, names, 1)
    return (f"did you mean {close[0]}? " if close else "") + f"known: {', '.join(names) or 'none'}"


def reason_of(error: BaseException) -> Reason:
    """Why an error of a script or of the simulation ended a run."""
    if isinstance(error, PhantoraError) and error.reason != Reason.REFUSED:
        return error.reason
    if isinstance(error, OSError) and error.errno in _FULL:
        return Reason.DISK_FULL
    text = str(error)
    if type(error).__name__ == _OUT_OF_MEMORY or _NO_ROOM.search(text):
        return Reason.OUT_OF_MEMORY
    if NO_FOLD in text:
        return Reason.CANNOT_FOLD
    return Reason.REFUSED if isinstance(error, PhantoraError) else Reason.SCRIPT_FAILED


def cause_of(error: OSError) -> str:
    """The system's text for the error. Errors of libraries (gzip, pyarrow) have no `strerror`."""
    return os.strerror(error.errno) if error.errno else str(error) or type(error).__name__


def limit_of_processes(error: BaseException) -> str:
    """Explanation of an error by which the system, Python, torch or Arrow refuses one more process or thread; '' for
    others."""
    text = str(error)
    if isinstance(error, BlockingIOError) and not hasattr(error, "characters_written"):  # of fork, not of a write
        what = "cannot start a process"
    elif any(message in text for message in _NO_THREAD) or text == os.strerror(errno.EAGAIN):  # the last of std::thread
        what = "cannot start a thread"
    else:
        return ""
    return f"{what}: the limit of processes is reached (`ulimit -u`, or pids.max of the control group); raise it"

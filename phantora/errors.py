"""The one exception type that reaches a user, printed once as a single line."""

from __future__ import annotations

import errno
import os

_NO_THREAD = ("can't start new thread", "Failed to launch worker thread")  # Python, Arrow


class PhantoraError(Exception):
    """Something the user can mend. The message says what, where, and how to mend it."""

    exit_status = 1


def limit_of_processes(error: BaseException) -> str:
    """What to say of an error by which the system, Python, torch or Arrow refuses one more process or thread; '' of
    others."""
    text = str(error)
    if isinstance(error, BlockingIOError) and not hasattr(error, "characters_written"):  # of fork, not of a write
        what = "cannot start a process"
    elif any(said in text for said in _NO_THREAD) or text == os.strerror(errno.EAGAIN):  # the last of std::thread
        what = "cannot start a thread"
    else:
        return ""
    return f"{what}: the limit of processes is reached (`ulimit -u`, or pids.max of the control group); raise it"

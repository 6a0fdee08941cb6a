"""Lock of a log: one run at a time writes it."""

from __future__ import annotations

import fcntl
import io
import os
import stat

from phantora.errors import PhantoraError
from phantora.outputs import is_unnamed, open_output


def lock_for_writing(path: str) -> io.FileIO:
    """The file at `path`, locked until it is closed; it is made if it is not there, and not changed.

    Raises PhantoraError while another run writes it, OSError if it cannot be opened.
    """
    file = io.FileIO(open_output(path, empty=False), "wb")
    if not _try_lock(file.fileno()):
        file.close()
        raise PhantoraError(f"{path}: another run is writing it; wait for its end, or name another place with -o")
    return file


def is_being_written(path: str) -> bool:
    """True if a run writes this log."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return not _try_lock(fd)
    finally:
        os.close(fd)


def was_deleted(file: io.FileIO) -> bool:
    """True if the open file has lost its last name. One in memory never had any."""
    return os.fstat(file.fileno()).st_nlink == 0 and not is_unnamed(file.fileno())


def _try_lock(fd: int) -> bool:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return True  # /dev/null is everybody's
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks
    return True

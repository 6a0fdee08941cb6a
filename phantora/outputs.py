"""Files that a user asked for, opened so that another user of the machine cannot choose what is overwritten; and files
of our own that nothing is left of, however we end."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from phantora.errors import cause_of


def why_not_written(path: str | os.PathLike[str], error: OSError) -> str:
    """Reason why `path` cannot be written, and the remedy."""
    folder = os.path.dirname(os.fspath(path)) or "."
    if error.errno == errno.ENOENT and not os.path.isdir(folder):
        return f"there is no folder {folder}; make it, or choose another -o"
    reason = cause_of(error)
    room = "make room, or " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return f"{reason}; {room}choose another -o"


def open_output(path: str | os.PathLike[str], *, empty: bool = True) -> int:
    """A descriptor of `path` for writing, emptied unless `empty` is false; the file is made if there is none.

    In a folder that others can write to (/tmp, /dev/shm) links are not followed and files of other users are not taken:
    whoever made them would choose what is overwritten, or could change it later. Raises OSError.
    """
    shared = os.stat(os.path.dirname(os.fspath(path)) or ".").st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_NOFOLLOW if shared else 0), 0o666)
    try:
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode):
            if shared and found.st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "another user's file, in a folder that all can write to", str(path))
            if empty:
                os.ftruncate(fd, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def unnamed(name: str) -> Iterator[Path]:
    """The path of an empty file in memory, which other processes of this user can open while this one lives.

    It has no place in a folder: unlike a temporary one it is gone when this process is killed. `name` is for those who
    look at a process's files.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        yield Path(f"/proc/{os.getpid()}/fd/{fd}")
    finally:
        os.close(fd)


def is_unnamed(fd: int) -> bool:
    """True for such a file."""
    return os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:")

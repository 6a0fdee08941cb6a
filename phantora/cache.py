"""Folders of this user's cache: compiled stubs, tables, IR. What lies there runs as code: nobody else may write it."""

from __future__ import annotations

import os
import shutil
import stat
from functools import cache
from pathlib import Path

from phantora.errors import PhantoraError


def cache_directory() -> Path:
    """The root of the cache, which need not exist. Raises PhantoraError if others could have put something there."""
    base = os.environ.get("XDG_CACHE_HOME")
    root = (Path(base) if base else Path.home() / ".cache") / "phantora"
    return _checked(root)


@cache
def _checked(root: Path) -> Path:
    try:
        found = root.stat()
    except OSError:  # `make_folder` makes it, or raises with the reason
        return root
    if found.st_uid not in (os.geteuid(), 0):
        raise PhantoraError(
            f"{root} belongs to user {found.st_uid}, and libraries from it would run as you; set XDG_CACHE_HOME to a "
            "folder of yours"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PhantoraError(
            f"{root} can be written by other users, and libraries from it would run as you; remove it, or if you trust "
            f"what lies there: chmod 700 {root}"
        )
    return root


def make_folder(path: Path) -> Path:
    """`path` with its parents up to the cache's root, for this user only. Raises OSError."""
    missing = []
    folder = path
    while not folder.is_dir():
        missing.append(folder)
        if folder.parent == folder:
            break
        folder = folder.parent
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    return path


def make_room(folder: Path, most: int) -> None:
    """Removes what was written longest ago in `folder`, so that there is room for one more of `most`."""
    if folder.is_dir():
        oldest = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in oldest[: max(0, len(oldest) + 1 - most)]:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

"""The stub libraries for the installed torch: kept in the user's cache, brought by the installation, or built."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from phantora.cache import cache_directory, make_folder
from phantora.errors import PhantoraError, cause_of
from phantora.stubs import build, sources
from phantora.stubs.build import StubSet
from phantora.stubs.find import Torch, find_torch
from phantora.stubs.prebuilt import find_prebuilt, unpack

KEPT_SECONDS = 30 * 24 * 3600
"""A build that no run has used for this long is deleted when another is made."""


installed = cache(build.installed)  # reads the 14,000 lines of torch's RECORD


def cache_key(torch: Torch) -> str:
    """Names a build: by the content of torch, the versions of NVIDIA's libraries, the sources and the wire layout."""
    facts = f"{installed(torch)} {' '.join(build.defines(torch))} {sources.source_digest()}"
    return f"torch-{torch.version}-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"


def ensure(progress: Callable[[str], None] | None = None) -> StubSet:
    """The stubs for the installed torch: built before, or brought by the installation, or built now. Safe when several
    processes ask at once.

    `progress` is called with one line when a build begins, and every ten seconds. Raises PhantoraError if torch, a
    compiler or space is missing.
    """
    torch = find_torch()
    folder = cache_directory()
    target = folder / cache_key(torch)
    if found := build.read_set(target):
        _mark_used(target)
        return found
    prebuilt = find_prebuilt(torch) if sources.is_usual() else None
    missing = [name for name, version in build.compilers().items() if version is None]
    if missing and not prebuilt:
        raise PhantoraError(
            f"no {' and no '.join(missing)} on the PATH: the stub libraries are compiled once; "
            "install a compiler (Debian, Ubuntu: apt install gcc g++; Fedora: dnf install gcc gcc-c++)"
        )
    try:
        make_folder(folder)
        with open(folder / "build.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if found := build.read_set(target):
                return found
            for stale in folder.glob("building-*"):  # of builds that were killed: only one can be at work
                shutil.rmtree(stale, ignore_errors=True)
            if progress and not prebuilt:
                progress(f"compiling the stub libraries for torch {torch.version}, once; 20 s on two free cores")
            work = Path(tempfile.mkdtemp(prefix="building-", dir=folder))
            try:
                if prebuilt:
                    unpack(prebuilt, work)
                else:
                    build.build(torch, work, _earlier(folder), _counted(progress))
                _make_durable(work)
                shutil.rmtree(target, ignore_errors=True)  # a build of which part was lost
                work.rename(target)
                _mark_used(target)
                _delete_unused(folder)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise PhantoraError(
            f"cannot build the stub libraries in {folder}: {cause_of(error)}; make it writable or set XDG_CACHE_HOME"
        ) from error
    found = build.read_set(target)
    assert found is not None
    return found


def _mark_used(folder: Path) -> None:
    """Sets the folder's time of change to now."""
    with contextlib.suppress(OSError):  # a cache that is not ours to write
        os.utime(folder)


def _delete_unused(cache: Path) -> None:
    limit = time.time() - KEPT_SECONDS
    for folder in cache.glob("torch-*"):
        if folder.stat().st_mtime < limit:
            shutil.rmtree(folder, ignore_errors=True)


def _earlier(cache: Path) -> Iterator[StubSet]:
    """The finished builds in the cache, the newest first."""
    folders = sorted(cache.glob("torch-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    return filter(None, map(build.read_set, folders))


def _counted(progress: Callable[[str], None] | None) -> Callable[[int, int], None]:
    begin = time.monotonic()

    def built(done: int, total: int) -> None:
        if progress:
            progress(f"compiled {done} of {total} libraries in {time.monotonic() - begin:.0f} s")

    return built


def _make_durable(folder: Path) -> None:
    """The content of a folder is on the disk before the folder gets its final name."""
    for path in folder.iterdir():
        if path.is_file() and not path.is_symlink():
            with open(path, "rb") as file:
                os.fsync(file.fileno())

"""Cache of the work of launches: each kind is analysed once on this machine; ranks and later runs read it.

Following a kernel takes 20 to 150 ms. The answer depends on nothing but the key, so whoever writes it first writes what
the others would have written. One file per kind, in the cache folder under a checksum of the code that follows kernels.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

import phantora.ttir
from phantora.cache import cache_directory, make_folder


@functools.cache
def folder() -> Path:
    """The cache folder of this version of the code."""
    code = hashlib.sha256()
    for path in sorted(Path(phantora.ttir.__file__).parent.glob("*.py")):
        code.update(path.read_bytes())
    return cache_directory() / "triton-work" / code.hexdigest()[:16]


def found(key: bytes, follow: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The answer for `key`: from the cache, else from `follow`, whose errors pass through.

    Only one process follows, others wait for it: `follow` must not wait for the GPU, which may wait for a rank that
    waits here.
    """
    path = folder() / hashlib.sha256(key).hexdigest()[:32]
    with contextlib.suppress(OSError, orjson.JSONDecodeError):
        return _read(path)
    try:
        make_folder(path.parent)
        with _alone(path):
            with contextlib.suppress(OSError, orjson.JSONDecodeError):
                return _read(path)
            answer = follow()
            _write(path, answer)
            return answer
    except OSError:  # no cache can be written
        return follow()


def _read(path: Path) -> dict[str, Any]:
    answer: dict[str, Any] = orjson.loads(path.read_bytes())
    return answer


def _write(path: Path, answer: Mapping[str, Any]) -> None:
    """As a whole or not at all."""
    own = path.with_name(f"{path.name}.{os.getpid()}")
    own.write_bytes(orjson.dumps(answer))
    own.replace(path)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    with open(path.with_name(f"{path.name}.lock"), "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
        with contextlib.suppress(OSError):
            os.unlink(file.name)

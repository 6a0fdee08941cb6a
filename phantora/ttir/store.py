"""Store of the IR of launched kernels, by checksum: `phantora profile` compiles it again on a real GPU."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from pathlib import Path
from typing import Any

import orjson

from phantora.cache import cache_directory, make_folder


def folder() -> Path:
    """Folder of the store, in the user's cache."""
    return cache_directory() / "triton-ir"


@functools.lru_cache(maxsize=4096)
def keep(ir: str, warps: int, stages: int) -> str:
    """The key of a kernel's IR and of how it is compiled; empty where nothing can be kept."""
    data = orjson.dumps({"ttir": ir, "warps": warps, "stages": stages})
    key = hashlib.sha256(data).hexdigest()[:24]
    path = folder() / f"{key}.json"
    try:
        if not path.exists():
            make_folder(path.parent)
            own = path.with_name(f"{path.name}.{os.getpid()}")
            own.write_bytes(data)
            own.replace(path)
    except OSError:
        return ""
    return key


def kept(key: str) -> dict[str, Any] | None:
    """Argument of `keep`; None if it is not on this machine."""
    with contextlib.suppress(OSError, orjson.JSONDecodeError):
        found: dict[str, Any] = orjson.loads((folder() / f"{key}.json").read_bytes())
        return found
    return None

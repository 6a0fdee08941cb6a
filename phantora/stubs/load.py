"""Puts the stub libraries into this process, in the place of the real ones."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from pathlib import Path
from typing import Any

from phantora.errors import PhantoraError
from phantora.stubs.build import StubSet

_loaded: dict[Path, ctypes.CDLL] = {}
_RTLD_NOLOAD = 4  # dlfcn.h of Linux


def _refuse_real(soname: str) -> None:
    """A library of that name that came first would serve torch instead of the stub."""
    try:
        ctypes.CDLL(soname, mode=_RTLD_NOLOAD)
    except OSError:
        return
    raise PhantoraError(
        f"{soname} is already loaded in this process, so its stub cannot take its place; "
        "don't preload CUDA libraries (LD_PRELOAD) and import nothing that uses CUDA before"
    )


def load(stub_set: StubSet) -> ctypes.CDLL:
    """Opens all libraries with global scope; returns the rank runtime. Before torch is imported.

    A library that is already loaded under a name satisfies every later request for that name, so
    torch links to the stubs even where NVIDIA's own wheels are installed next to it.
    """
    if stub_set.directory in _loaded:
        return _loaded[stub_set.directory]
    if "torch" in sys.modules:
        raise PhantoraError(
            "torch was imported before the stub libraries were loaded; import phantora's launcher first"
        )
    for path in stub_set.libraries:
        _refuse_real(path.name)
    try:
        rank = ctypes.CDLL(str(stub_set.rank), mode=ctypes.RTLD_GLOBAL)
        for path in stub_set.libraries:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise PhantoraError(
            f"cannot load a stub library: {error}; remove {stub_set.directory} and try again"
        ) from error
    _serve_opened(stub_set)
    _loaded[stub_set.directory] = rank
    return rank


def _serve_opened(stub_set: StubSet) -> None:
    """Libraries that Python opens by their path, as Transformer Engine does: the stub in the place of NVIDIA's."""
    stubs = {path.name: str(path) for path in stub_set.libraries}
    opened = ctypes.CDLL.__init__

    @functools.wraps(opened)
    def serve(self: ctypes.CDLL, name: Any, *args: Any, **options: Any) -> None:
        base = os.path.basename(os.fsdecode(name)) if isinstance(name, (str, bytes, os.PathLike)) else ""
        opened(self, stubs.get(base, name), *args, **options)

    ctypes.CDLL.__init__ = serve  # type: ignore[method-assign]

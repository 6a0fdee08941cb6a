"""Puts the stub libraries into this process, in the place of the real ones."""

from __future__ import annotations

import ctypes
import sys

from phantora.errors import PhantoraError
from phantora.stubs.build import StubSet


def load(stub_set: StubSet) -> ctypes.CDLL:
    """Opens all libraries with global scope; returns the rank runtime. Before torch is imported.

    A library that is already loaded under a name satisfies every later request for that name, so
    torch links to the stubs even where NVIDIA's own wheels are installed beside it.
    """
    if "torch" in sys.modules:
        raise PhantoraError("torch was imported before the stub libraries were loaded; import phantora's launcher first")
    try:
        rank = ctypes.CDLL(str(stub_set.rank), mode=ctypes.RTLD_GLOBAL)
        for path in stub_set.libraries:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise PhantoraError(f"cannot load a stub library: {error}; remove {stub_set.directory} and try again") from error
    return rank

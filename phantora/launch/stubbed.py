"""Loading the stub libraries, the clock and the tracer into this process."""

from __future__ import annotations

import ctypes

from phantora import stubs
from phantora.errors import PhantoraError
from phantora.launch import clock


def load_stubs() -> ctypes.CDLL:
    """Before torch is imported: the stubs and the clock. Returns the rank runtime."""
    stub_set = stubs.ensure()
    library = stubs.load(stub_set)
    clock.install(stub_set.directory / clock.LIBRARY, library)
    return library


def install_tracer() -> None:
    """After torch was imported: the operator tracer."""
    path = stubs.ensure().tracer
    try:
        tracer = ctypes.CDLL(str(path))
    except OSError as error:
        raise PhantoraError(f"cannot load the operator tracer: {error}; run `phantora doctor`") from error
    if tracer.phantora_tracer_install() != 0:
        raise PhantoraError("the operator tracer does not work with this torch; run `phantora doctor`")

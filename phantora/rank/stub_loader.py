"""Loading the stub libraries, the clock and the tracer into this process."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from phantora import stubs
from phantora.errors import PhantoraError
from phantora.rank import assume, clock, failures
from phantora.rank.patches import (
    block_masks,
    clipping,
    cupy_sparse,
    disk,
    engine_calls,
    garbage,
    modules,
    profiler,
    progress_bars,
    races,
    rpc_channels,
    static_runtime,
    symmetric,
    triton_launches,
    tuning,
    unpickling,
)
from phantora.stubs.build import StubSet, read_set


def find_stubs(directory: str | None) -> StubSet:
    """The stubs that the parent process found, unless this interpreter has another torch."""
    found = read_set(Path(directory)) if directory else None
    if found is None or found.torch_version != stubs.find_torch().version:
        found = stubs.ensure()
    return found


def load_stubs(stub_set: StubSet) -> ctypes.CDLL:
    """Before torch is imported: the stubs and the clock. Returns the rank runtime."""
    library = stubs.load(stub_set)
    os.environ["TRITON_LIBCUDA_PATH"] = str(stub_set.directory)  # Triton links its launchers to this driver
    os.environ["NVTX_INJECTION64_PATH"] = str(stub_set.rank)  # ranges go to stub/rank/ranges.c
    clock.install(stub_set.directory / clock.LIBRARY, library)
    profiler.install(library)
    failures.install(library)
    runtime = next(path for path in stub_set.libraries if path.name.startswith("libcudart.so"))
    driver = next(path for path in stub_set.libraries if path.name.startswith("libcuda.so"))
    static_runtime.install(runtime, driver)
    cupy_sparse.install(library, ctypes.CDLL(str(runtime)))
    return library


def install_tracer(stub_set: StubSet) -> None:
    """After torch was imported: the operator tracer."""
    try:
        install = ctypes.CDLL(str(stub_set.tracer)).phantora_tracer_install
    except (OSError, AttributeError) as error:
        raise PhantoraError(f"cannot load the operator tracer: {error}; run `phantora doctor`") from error
    if install() != 0:
        raise PhantoraError("the operator tracer does not work with this torch; run `phantora doctor`")
    assume.install(stub_set.tracer)
    triton_launches.install(stub_set.tracer)
    engine_calls.install(stub_set.tracer)
    block_masks.install(stub_set.tracer)
    clipping.install(stub_set.tracer)
    disk.install(stub_set.tracer)
    modules.install(stub_set.tracer)
    garbage.install(stub_set.tracer)
    races.install(stub_set.tracer)
    unpickling.install()
    progress_bars.install()
    rpc_channels.install()
    tuning.install()
    neighbour = ctypes.CDLL(str(stub_set.rank)).ph_neighbour
    neighbour.restype = ctypes.c_bool
    symmetric.install(neighbour)

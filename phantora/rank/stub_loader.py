"""Loading the stub libraries and the operator tracer into this process, with the patches that they need."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from phantora import stubs
from phantora.errors import PhantoraError
from phantora.rank import patches
from phantora.rank.patch import Rank, When
from phantora.stubs.build import StubSet, read_set


def find_stubs(directory: str | None) -> StubSet:
    """The stubs that the parent process found, unless this interpreter has another torch."""
    found = read_set(Path(directory)) if directory else None
    if found is None or found.torch_version != stubs.find_torch().version:
        found = stubs.ensure()
    return found


def load_stubs(stub_set: StubSet) -> Rank:
    """Before torch is imported: loads the stubs, and installs the patches of this moment."""
    rank = Rank(stub_set, stubs.load(stub_set))
    os.environ["TRITON_LIBCUDA_PATH"] = str(stub_set.directory)  # Triton links its launchers to this driver
    os.environ["NVTX_INJECTION64_PATH"] = str(stub_set.rank)  # ranges go to stub/rank/ranges.c
    patches.install(When.BEFORE_TORCH, rank)
    return rank


def install_tracer(rank: Rank) -> None:
    """After torch was imported: installs the operator tracer, and the patches of this moment."""
    load_tracer(rank)
    patches.install(When.AFTER_TORCH, rank)


def load_tracer(rank: Rank) -> None:
    """After torch was imported: installs the operator tracer alone. Raises PhantoraError."""
    try:
        install = ctypes.CDLL(str(rank.tracer)).phantora_tracer_install
    except (OSError, AttributeError) as error:
        raise PhantoraError(f"cannot load the operator tracer: {error}; run `phantora doctor`") from error
    if install() != 0:
        raise PhantoraError("the operator tracer does not work with this torch; run `phantora doctor`")

"""The stub libraries inside a connected child of a test, by short names."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_void_p
from typing import Any

from phantora.stubs import StubSet
from tests.cuda import calls
from tests.support import ringdump

STEMS = {
    "rt": "libcudart.so",
    "cu": "libcuda.so",
    "nvml": "libnvidia-ml.so",
    "nvrtc": "libnvrtc.so",
    "cupti": "libcupti.so",
}


class Stubs(calls.Cuda):
    """As in the cases of semantics.py, with the other libraries and the rank runtime."""

    def __init__(self, stub_set: StubSet, rank: ctypes.CDLL) -> None:
        loaded = {
            name: ctypes.CDLL(
                next(str(path) for path in stub_set.libraries if path.name.startswith(stem)), mode=ctypes.RTLD_GLOBAL
            )
            for name, stem in STEMS.items()
        }
        super().__init__(loaded["rt"], loaded["cu"], calls.register(loaded["rt"], b"no code"))
        self.nvml, self.nvrtc, self.cupti, self.rank = loaded["nvml"], loaded["nvrtc"], loaded["cupti"], rank
        self.rt.cudaFree(None)

    def free_bytes(self) -> int:
        free, total = c_size_t(), c_size_t()
        assert self.rt.cudaMemGetInfo(byref(free), byref(total)) == 0
        return free.value

    def set_device(self, device: int) -> None:
        assert self.rt.cudaSetDevice(c_int(device)) == 0

    def handle(self, value: int) -> c_void_p:
        return c_void_p(value)


def connected(stub_set: StubSet, function: Callable[[Stubs], Any], **settings: Any) -> ringdump.Dump:
    """Runs `function` in a child that is rank 0; its value and its records come back."""
    dump = ringdump.run(lambda rank: function(Stubs(stub_set, rank)), stub_set.rank, **settings)
    assert dump.status == 0, dump.stderr
    return dump

"""Parts of a GPU (MIG, MPS, green contexts) are refused by name."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_uint, c_void_p
from typing import Any

import pytest

from phantora.errors import PhantoraError
from phantora.launch.plan import refuse_shares
from phantora.stubs import StubSet
from tests.cuda.stublib import Stubs, connected
from tests.support import ringdump

MIG = "MIG-b43db0e3-e8b3-4330-aed8-ff9804d17d7a"
SHARES = ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
NOT_SUPPORTED = 801
UNSUPPORTED = 78  # status of the process


def count(c: Stubs) -> tuple[int, int]:
    n = c_int()
    return c.rt.cudaGetDeviceCount(byref(n)), n.value


@pytest.mark.parametrize("listed", [MIG, f"0,{MIG}", "MIG-GPU-b43db0e3/1/0"])
def test_mig(stub_set: StubSet, monkeypatch: pytest.MonkeyPatch, listed: str) -> None:
    with pytest.raises(PhantoraError, match="MIG is not simulated; unset it"):
        refuse_shares({"CUDA_VISIBLE_DEVICES": listed})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    dump = connected(stub_set, count, devices=2)
    assert dump.value == ((0, 1) if listed[0] == "0" else (100, 0))
    assert dump.stderr.count("MIG is not simulated; name whole GPUs") == 1


def test_nvml_has_no_mig(stub_set: StubSet) -> None:
    def program(c: Stubs) -> list[int]:
        m, device, n, mig = c.nvml, c_void_p(), c_uint(7), c_void_p()
        m.nvmlInit_v2()
        m.nvmlDeviceGetHandleByIndex_v2(c_uint(0), byref(device))
        out = [m.nvmlDeviceGetMaxMigDeviceCount(device, byref(n)), n.value]
        out += [m.nvmlDeviceGetMigDeviceHandleByIndex(device, c_uint(0), byref(mig))]
        return out + [m.nvmlDeviceSetMigMode(device, c_uint(mode), byref(n)) for mode in (0, 1)]

    dump = connected(stub_set, program)
    assert dump.value == [0, 0, 6, 0, 3]
    assert dump.stderr.count("MIG is not simulated") == 1


@pytest.mark.parametrize("name", SHARES)
def test_mps(stub_set: StubSet, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with pytest.raises(PhantoraError, match=f"{name} .* shares of MPS are not simulated; unset it"):
        refuse_shares({name: "50"})
    monkeypatch.setenv(name, "50")
    dump = ringdump.run(lambda rank: count(Stubs(stub_set, rank)), stub_set.rank)
    assert dump.status == UNSUPPORTED
    assert f"{name} (MPS) is not supported" in dump.stderr


def test_where_mps_lies_does_not_matter() -> None:
    refuse_shares({"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps", "CUDA_VISIBLE_DEVICES": "GPU-1,0"})


def test_green_contexts(stub_set: StubSet) -> None:
    def program(c: Stubs) -> list[Any]:
        n = c_int()
        c.rt.cudaGetDeviceCount(byref(n))
        resource = ctypes.create_string_buffer(256)
        return [
            c.rt.cudaDeviceGetDevResource(c_int(0), resource, c_int(1)),
            c.rt.cudaGreenCtxCreate(None, None, c_int(0), c_int(0)),
            c.cu.cuDeviceGetDevResource(c_int(0), resource, c_int(1)),
            c.cu.cuDevSmResourceSplitByCount(None, None, None, None, c_int(0), c_int(8)),
            c.cu.cuGreenCtxCreate(None, None, c_int(0), c_int(1)),
        ]

    dump = connected(stub_set, program)
    assert dump.value == [NOT_SUPPORTED] * 5
    assert dump.stderr.count("green contexts are not simulated, use streams") == 5
    assert "cudaGreenCtxCreate" in dump.stderr and "cuDevSmResourceSplitByCount" in dump.stderr

"""The stubs answer call by call what NVIDIA's libraries answered on an H200 (semantics.py)."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import pytest

from phantora.stubs import StubSet
from tests.cuda import semantics
from tests.cuda.calls import Cuda, register
from tests.support import ringdump

HERE = Path(__file__).parent

H200: dict[str, Any] = {
    "name": b"NVIDIA H200",
    "memory_bytes": 150_109_880_320,
    "context_bytes": 500 << 20,
    "bus_width": 6016,
    "memory_clock_khz": 3201000,
    "l2_bytes": 62914560,
    "persisting_l2_bytes": 39321600,
}
# Attributes that tell where the measured board sits, which board it is, and what the stubs do not offer:
# handles other than files that other processes can open, DMA buffers, pools and mappings in host memory.
PLACE_AND_BOARD = {"33", "34", "139", "140"}
NOT_OFFERED = {"119", "124", "128", "141", "142", "144", "145"}


def major(stub_set: StubSet) -> int:
    return int(next(path.name for path in stub_set.libraries if path.name.startswith("libcudart")).split(".")[-1])


def load(stub_set: StubSet) -> Cuda:
    """Runs in a connected child: the runtime and the driver, a registered kernel, a context."""
    for path in stub_set.libraries[:4]:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    driver, runtime = (
        ctypes.CDLL(next(str(path) for path in stub_set.libraries if path.name.startswith(stem)))
        for stem in ("libcuda.so", "libcudart.so")
    )
    cuda = Cuda(runtime, driver, register(runtime, b"no code"))
    assert driver.cuInit(0) == 0 and runtime.cudaFree(None) == 0
    return cuda


def expected(stub_set: StubSet) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((HERE / f"h200_cuda{major(stub_set)}.json").read_text())
    return data


@pytest.mark.parametrize("case", semantics.CASES, ids=lambda case: case.__name__)
def test_same_answers_as_an_h200(stub_set: StubSet, case: Any) -> None:
    dump = ringdump.run(lambda _: case(load(stub_set)), stub_set.rank, device=H200)
    assert dump.status == 0, dump.stderr
    assert json.loads(json.dumps(dump.value)) == expected(stub_set)[case.__name__]


def test_same_device_attributes_as_an_h200(stub_set: StubSet) -> None:
    got = ringdump.run(lambda _: semantics.attributes(load(stub_set)), stub_set.rank, device=H200).value
    want = expected(stub_set)["attributes"]
    for number in PLACE_AND_BOARD:
        del want[number], got[number]
    assert {number for number in want if got[number] != want[number]} == NOT_OFFERED
    assert all(got[number] == [0, 0] for number in NOT_OFFERED)


def test_same_device_properties_as_an_h200(stub_set: StubSet) -> None:
    got = ringdump.run(lambda _: semantics.properties(load(stub_set)), stub_set.rank, device=H200).value
    want = expected(stub_set)["properties"]
    assert len(got) == len(want)
    # PCI place (bus, device), and at the end what NOT_OFFERED and PLACE_AND_BOARD name.
    differing = [(w, g) for w, g in zip(want, got, strict=True) if w != g]
    board = [(590680286, 0), (415174878, 0)] if major(stub_set) >= 13 else []
    assert differing == [(0, 25), (6, 0), (9, 0), *board]

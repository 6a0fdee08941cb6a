"""Libraries say their versions: programs ask before they choose calls (CuPy: cuSOLVER's)."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from phantora.stubs import StubSet
from tests.cuda.stublib import Stubs, connected


def test_cusolver_says_its_version_as_a_number_and_in_parts(stub_set: StubSet) -> None:
    path = next(str(path) for path in stub_set.libraries if path.name.startswith("libcusolver.so"))

    def program(_: Stubs) -> Any:
        library, value, parts = ctypes.CDLL(path), c_int(), []
        for part in range(3):
            assert library.cusolverGetProperty(c_int(part), byref(value)) == 0
            parts.append(value.value)
        assert library.cusolverGetVersion(byref(value)) == 0
        wrong = [library.cusolverGetProperty(c_int(part), byref(c_int())) for part in (-1, 3)]
        return parts, value.value, wrong, library.cusolverGetProperty(c_int(0), None), library.cusolverGetVersion(None)

    parts, number, wrong, nothing, nowhere = connected(stub_set, program).value
    assert number == parts[0] * 1000 + parts[1] * 100 + parts[2]
    assert (wrong, nothing, nowhere) == ([3, 3], 3, 3)
    try:
        installed = version("nvidia-cusolver")
    except PackageNotFoundError:
        installed = version("nvidia-cusolver-cu12")
    assert parts[0] == int(installed.split(".")[0])

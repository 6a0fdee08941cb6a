"""Shared fixtures: the libraries are built once per test session."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from phantora import stubs


@pytest.fixture(scope="session")
def stub_set() -> stubs.StubSet:
    return stubs.ensure()


@pytest.fixture(scope="session")
def engine_library(stub_set: stubs.StubSet) -> Path:
    return stub_set.engine

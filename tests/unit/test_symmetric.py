"""Symmetric memory ends in a message of ours, whichever way a program asks for it."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from phantora.errors import PhantoraError
from phantora.launch import symmetric


def test_the_allocation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        @staticmethod
        def empty_strided_p2p(size: int) -> int:
            return size

    module = ModuleType("torch.distributed._symmetric_memory")
    module._SymmetricMemory = Memory  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    symmetric.install()
    with pytest.raises(PhantoraError, match="symmetric memory"):
        Memory.empty_strided_p2p(8)
